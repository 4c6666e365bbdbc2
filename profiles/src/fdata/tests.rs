//! Text in BOLT's format: read, merged, written back, and damaged in every way.

use proptest::prelude::*;

use super::*;

const BRANCHES: &str =
    "boltedcollection\n0 [unknown] 0 1 main 0 0 1\n1 main 3fb 1 foo/1 0 0 4\n1 operator\\ new 1f 1 main 3fb 2 40\n";

#[test]
fn branch_records_are_read_and_written_as_they_were() {
    let fdata = Fdata::read(BRANCHES.as_bytes()).unwrap();
    assert!(fdata.is_bolted);
    assert_eq!(fdata.branches.len(), 3);
    assert!(fdata.names.iter().any(|name| name == "operator new"));
    assert_eq!(fdata.write(), BRANCHES);
}

#[test]
fn samples_and_their_events_are_read_and_written_as_they_were() {
    let text = "no_lbr cpu-clock:\n1 main 3fb 12\n1 main 451 4\n";
    let fdata = Fdata::read(text.as_bytes()).unwrap();
    assert_eq!(fdata.sampled_events.as_deref(), Some("cpu-clock:"));
    assert_eq!(fdata.write(), text);
}

#[test]
fn merging_adds_counts_by_weight() {
    let one = Fdata::read(b"1 f 1 1 f 2 1 10\n").unwrap();
    let other = Fdata::read(b"1 g 0 1 f 0 0 1\n1 f 1 1 f 2 0 5\n").unwrap();
    let mut sum = Fdata::default();
    sum.merge(&one, 1).unwrap();
    sum.merge(&other, 3).unwrap();
    assert_eq!(sum.write(), "1 f 1 1 f 2 1 25\n1 g 0 1 f 0 0 3\n");
}

#[test]
fn samples_are_not_added_to_branches() {
    let mut branches = Fdata::read(b"1 f 1 1 f 2 0 1\n").unwrap();
    let samples = Fdata::read(b"no_lbr cycles:\n1 f 1 1\n").unwrap();
    assert!(branches.merge(&samples, 1).is_err());
}

#[test]
fn a_damaged_line_is_named() {
    for bad in
        ["1 f 1 1 f 2 0\n", "1 f 1 1 f 2 0 1 1\n", "9 f 1 1 f 2 0 1\n", "1 f xyz 1 f 2 0 1\n", "1 f 1 1 f 2 0 -1\n", "main\n"]
    {
        let text = format!("1 f 1 1 f 2 0 1\n\n{bad}");
        let error = Fdata::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
    }
}

proptest! {
    #[test]
    fn damaged_files_never_panic(index in 0..BRANCHES.len(), byte: u8, cut in 0..BRANCHES.len()) {
        let mut bytes = BRANCHES.as_bytes().to_vec();
        bytes[index] = byte;
        bytes.truncate(bytes.len() - cut);
        if let Ok(fdata) = Fdata::read(&bytes) {
            let again = Fdata::read(fdata.write().as_bytes());
            let is_same = again.is_ok_and(|again| again.write() == fdata.write());
            prop_assert!(is_same || fdata.names.iter().any(|name| name.ends_with('\r')), "{}", fdata.write());
        }
    }
}
