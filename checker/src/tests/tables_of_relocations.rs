//! Tables of relocations that have another name or another form than most.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, build_with};
use super::*;

/// Both words of data lead to functions that changed places.
#[test]
fn tables_that_the_linker_did_not_join_are_compared_by_what_they_relocate() {
    let program = |functions: &[&str]| build_with(functions, TABLE, "-pie -Wl,-z,nocombreloc");
    let Some(input) = program(&[TWICE, CLASSIFY, UNUSED]) else { return };
    let moved = program(&[UNUSED, CLASSIFY, TWICE]).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let mut wrong = moved;
    let side = |bytes| Image::parse(bytes).unwrap();
    let table = side(&wrong).section(".rela.data").map(|section| section.offset as usize).unwrap();
    wrong[table + 16] ^= 1;
    assert!(!check(&input, &wrong).unwrap().is_ok());
}

/// The entry for debuggers says that there are such relocations.
#[test]
fn code_to_which_relocations_in_androids_form_may_lead_stays() {
    const DT_DEBUG: u64 = 21;
    const DT_ANDROID_RELA: u64 = 0x6000_0011;
    let program = |functions: &[&str]| {
        let mut bytes = build(functions, TABLE)?;
        let dynamic = Image::parse(&bytes).unwrap().section(".dynamic").map(|section| section.offset as usize).unwrap();
        let mut entries = bytes[dynamic..].chunks_exact_mut(16);
        let entry = entries.find(|entry| entry.starts_with(&DT_DEBUG.to_le_bytes())).unwrap();
        entry[..8].copy_from_slice(&DT_ANDROID_RELA.to_le_bytes());
        Some(bytes)
    };
    let Some(input) = program(&[TWICE, CLASSIFY, UNUSED]) else { return };
    assert!(check(&input, &input).unwrap().is_ok());
    let report = check(&input, &program(&[UNUSED, CLASSIFY, TWICE]).unwrap()).unwrap();
    assert_eq!(kinds(&report), [ViolationKind::Dynamic], "{}", report.summary(10));
}
