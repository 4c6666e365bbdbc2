//! Pre-aggregated text: every kind of line, other objects' addresses, damaged lines.

use super::*;

#[test]
fn every_kind_of_line_is_read_and_added_up() {
    let text = b"E cycles\nB 10 20 3 1\nB 10 20 2 0\nF 20 2f 5\nf 20 2f 1\nr 22 2f 1\nT 30 20 2f 4\nR abc:30 20 2f 1\nS 24 7\nB X:0 20 9 0\n";
    let samples = read(text, Some("abc")).unwrap();
    let branch = |from: u64, to: u64| {
        let found = samples.branches.iter().find(|b| b.from == Some(Va(from)) && b.to == Some(Va(to)));
        found.map(|b| (b.count, b.mispredicted))
    };
    assert_eq!(branch(0x10, 0x20), Some((5, 1)));
    assert_eq!(branch(0x30, 0x20), Some((5, 0)));
    assert!(samples.branches.iter().any(|b| b.from.is_none() && b.count == 9));
    assert_eq!(samples.traces.iter().map(|t| t.count).collect::<Vec<_>>(), [11, 1]);
    assert_eq!(samples.addresses, [(Va(0x24), 7)]);
}

#[test]
fn another_objects_addresses_are_outside() {
    let samples = read(b"B def:10 20 3 0\n", Some("abc")).unwrap();
    assert_eq!(samples.branches[0].from, None);
}

#[test]
fn a_damaged_line_is_named() {
    for text in ["B 10 20 3 0\nB 10\n", "S 1 1\nX 1 1\n", "S 1 1\nS 1 +1\n", "S 1 1\nS 1 1 1\n", "S 1 1\nS zz 1\n"] {
        let error = read(text.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
