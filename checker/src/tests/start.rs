//! Programs that relocate themselves.

use std::path::Path;
use std::process::Command;

const FLAGS: [&str; 6] =
    ["-O1", "-ffreestanding", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns", "-nostdlib", "-static-pie"];
const READS_PACKED: &str = "-DPACKED";
const IS_PACKED: &str = "-Wl,-z,pack-relative-relocs";
/// What the program returns if its relocations were applied.
const DONE: Option<i32> = Some(47);

/// Whether a program is seen to relocate itself, and what it returns when it is run.
fn relocates_itself(flags: &[&str]) -> Option<(bool, Option<i32>)> {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kinds/relocates_itself.c");
    let program = folder.path().join("a");
    let mut compiler = Command::new("gcc");
    compiler.args(FLAGS).args(flags).arg(&source).arg("-o").arg(&program);
    if !compiler.status().is_ok_and(|status| status.success()) {
        return None;
    }
    let is_seen = crate::relocates_itself(&std::fs::read(&program).unwrap()).unwrap();
    Some((is_seen, Command::new(&program).status().unwrap().code()))
}

#[test]
fn a_program_is_seen_to_relocate_itself_in_the_form_that_its_relocations_have() {
    assert_eq!(relocates_itself(&[]).unwrap(), (true, DONE));
    assert_eq!(relocates_itself(&[READS_PACKED]).unwrap(), (true, DONE));
    // Older linkers don't know the form.
    let Some(found) = relocates_itself(&[READS_PACKED, IS_PACKED]) else { return };
    assert_eq!(found, (true, DONE));
    let (is_seen, status) = relocates_itself(&[IS_PACKED]).unwrap();
    assert!(!is_seen && status != DONE, "it uses what is no address");
}

#[test]
fn what_start_up_code_does_besides_or_not_at_all_is_seen() {
    // Another word, a pointer twice, one too few.
    for more in ["counter++;", "*(word *)pointers += base;", "pointers[3] = 0;"] {
        let (is_seen, _) = relocates_itself(&[READS_PACKED, &format!("-DMORE={more}")]).unwrap();
        assert!(!is_seen, "{more}");
    }
    // Something else names the dynamic section, and may apply it again.
    assert_eq!(relocates_itself(&[READS_PACKED, "-DAGAIN"]).unwrap(), (false, DONE));
    // An instruction that is not known comes before it is done.
    let unknown = "-DBEFORE=__asm__ volatile(\"cpuid\" : : \"a\"(0) : \"rbx\", \"rcx\", \"rdx\");";
    assert_eq!(relocates_itself(&[READS_PACKED, unknown]).unwrap(), (false, DONE));
}
