//! Differences between two rows, as unwinders read them.

use lifter::elf::eh_frame::CfiOp;

use super::*;

fn cie() -> CieData {
    CieData {
        code_alignment: 1,
        data_alignment: -8,
        return_register: 16,
        fde_encoding: 0x1b,
        lsda_encoding: None,
        personality: None,
        is_signal_frame: false,
        is_sparse: false,
        instructions: vec![0x0c, 7, 8, 0x90, 1], // the address is rsp+8, rip at -8 from it
    }
}
fn fde(ops: &[(u64, &[u8])]) -> FdeData {
    let ops = ops.iter().map(|&(at, bytes)| CfiOp { at: Va(at), bytes: bytes.into() }).collect();
    FdeData { cie: 0, start: Va(0x1000), end: Va(0x1100), lsda: None, opaque_lsda: None, ops }
}
fn between(fde: &FdeData, from: u64, to: u64) -> Vec<u8> {
    let cie = cie();
    let rows = Rows::evaluate(&cie, fde).unwrap();
    let mut out = Vec::new();
    rows.at(Va(from)).emit_difference(rows.at(Va(to)), cie.data_alignment, &mut out);
    out
}

#[test]
fn a_register_that_leaves_a_row_is_restored() {
    let fde = fde(&[(0x1001, &[0x0e, 16]), (0x1001, &[0x86, 2]), (0x1010, &[0xc6]), (0x1010, &[0x0e, 8])]);
    assert_eq!(between(&fde, 0x1000, 0x1001), [0x0e, 16, 0x86, 2]);
    assert_eq!(between(&fde, 0x1005, 0x1000), [0x0e, 8, 0xc6]);
    assert_eq!(between(&fde, 0x1010, 0x1000), []);
}

/// libgcc takes `DW_CFA_restore` for "not saved", and then returns to nowhere.
#[test]
fn the_return_address_is_never_restored_but_said_in_full() {
    let fde = fde(&[(0x1001, &[0x07, 16]), (0x1002, &[0x90, 1]), (0x1003, &[0x90, 3])]);
    assert_eq!(between(&fde, 0x1001, 0x1000), [0x90, 1]);
    assert_eq!(between(&fde, 0x1003, 0x1000), [0x90, 1]);
    assert_eq!(between(&fde, 0x1000, 0x1001), [0x07, 16]);
}

#[test]
fn the_return_address_gets_its_rule_back_in_full() {
    let fde = fde(&[(0x1001, &[0x07, 16]), (0x1010, &[0x90, 1]), (0x1020, &[0xd0])]);
    assert_eq!(between(&fde, 0x1001, 0x1000), [0x90, 1]);
    assert_eq!(between(&fde, 0x1001, 0x1010), [0x90, 1]);
    // What some unwinders read as nothing stays that.
    assert_eq!(between(&fde, 0x1001, 0x1020), [0xd0]);
    assert_eq!(between(&fde, 0x1000, 0x1020), [0xd0]);
    assert_eq!(between(&fde, 0x1020, 0x1000), [0x90, 1]);
}

#[test]
fn what_the_common_entry_saves_may_be_restored_and_saved_again() {
    let cie = CieData { instructions: vec![0x0c, 6, 16, 0x90, 1, 0x86, 2], ..cie() };
    let fde = fde(&[(0x1010, &[0x0c, 7, 8]), (0x1010, &[0xc6]), (0x1018, &[0x0c, 6, 16]), (0x1018, &[0x86, 2])]);
    let rows = Rows::evaluate(&cie, &fde).unwrap();
    let between = |from, to| {
        let mut out = Vec::new();
        rows.at(Va(from)).emit_difference(rows.at(Va(to)), cie.data_alignment, &mut out);
        out
    };
    assert_eq!(between(0x1000, 0x1010), [0x0c, 7, 8, 0xc6]);
    assert_eq!(between(0x1010, 0x1000), [0x0c, 6, 16, 0x86, 2]);
    assert_eq!(between(0x1010, 0x1018), [0x0c, 6, 16, 0x86, 2]);
}

#[test]
fn a_restored_state_is_the_remembered_one() {
    let fde = fde(&[(0x1001, &[0x0e, 16]), (0x1008, &[0x0a]), (0x1008, &[0x0e, 8]), (0x1009, &[0x0b])]);
    assert_eq!(between(&fde, 0x1007, 0x1009), []);
    assert_eq!(between(&fde, 0x1008, 0x1009), [0x0e, 16]);
}

#[test]
fn a_register_defined_after_an_expression_has_the_offset_from_before() {
    let fde = fde(&[(0x1001, &[0x0e, 56]), (0x1002, &[0x0f, 2, 0x77, 0]), (0x1003, &[0x0d, 7])]);
    assert_eq!(between(&fde, 0x1002, 0x1003), [0x0c, 7, 56]);
    assert_eq!(between(&fde, 0x1001, 0x1003), []);
}

#[test]
fn hostile_nesting_is_an_error() {
    let cie = cie();
    let deep = fde(&[(0x1001, &[0x0a][..]); MAX_DEPTH + 1]);
    assert!(Rows::evaluate(&cie, &deep).is_err());
    let empty = fde(&[(0x1001, &[0x0b])]);
    assert!(Rows::evaluate(&cie, &empty).is_err());
}
