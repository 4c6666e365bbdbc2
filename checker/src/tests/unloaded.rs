//! Sections that no loader reads, but perhaps the program.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build};
use super::*;

fn carrying(section: &str, functions: [&str; 2]) -> Option<Vec<u8>> {
    let carried = format!("    .section {section}\n    .text\n");
    build(&[functions[0], CLASSIFY, functions[1], &carried], TABLE)
}

#[test]
fn what_a_program_carries_unloaded_stays_as_it_is() {
    let (one, other) = ("payload, \"\"\n    .ascii \"one\"", "payload, \"\"\n    .ascii \"two\"");
    let Some(input) = carrying(one, [TWICE, UNUSED]) else { return };
    let report = check(&input, &carrying(one, [UNUSED, TWICE]).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let mut headless = input.clone();
    headless[40..48].fill(0);
    headless[60..64].fill(0);
    let nameless = carrying(".comment, \"\"\n    .ascii \"one\"", [TWICE, UNUSED]).unwrap();
    for wrong in [carrying(other, [TWICE, UNUSED]).unwrap(), nameless, headless] {
        assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::DataChanged]);
    }
}

#[test]
fn what_is_said_to_tools_may_go() {
    for name in [".comment", ".note.tool", ".debug_strange", ".gnu.build.attributes"] {
        let told = format!("{name}, \"\"\n    .ascii \"one\"");
        let Some(input) = carrying(&told, [TWICE, UNUSED]) else { return };
        let report = check(&input, &build(&[UNUSED, CLASSIFY, TWICE], TABLE).unwrap()).unwrap();
        assert!(report.is_ok(), "{}", report.summary(10));
    }
}
