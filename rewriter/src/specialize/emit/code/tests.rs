//! The bytes, read back by a decoder and run by a small interpreter.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use lifter::entity::EntityId;
use rustc_hash::FxHashMap;

use super::*;

fn clone(index: usize, state: Option<u32>) -> Way {
    Way::Clone { clone: CloneId::new(index), state }
}

fn instructions(code: &NewCode) -> FxHashMap<u64, Instruction> {
    let mut decoder = Decoder::new(64, &code.bytes, DecoderOptions::NONE);
    let mut found = FxHashMap::default();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        assert_ne!(instruction.code(), Code::INVALID);
        found.insert(instruction.ip(), instruction);
    }
    found
}

/// Runs code in a state: what it calls or jumps to, with what in `r11d`, and where it then goes on.
fn run(code: &NewCode, state: u32, depth: u32) -> (Option<CloneId>, Option<u32>, u64) {
    let instructions = instructions(code);
    let (mut at, mut r11, mut is_above) = (0u64, None::<u64>, false);
    let mut entered = None;
    while let Some(i) = instructions.get(&at) {
        at = i.next_ip();
        let is_slot = |i: &Instruction| i.memory_base() == Register::RSP && i.memory_displacement64() == u64::from(depth);
        match i.mnemonic() {
            Mnemonic::Cmp => {
                assert!(is_slot(i));
                is_above = state >= i.immediate32();
            }
            Mnemonic::Jae => at = if is_above { i.near_branch_target() } else { at },
            Mnemonic::Mov if i.op1_register() == Register::None && i.is_stack_instruction() => unreachable!(),
            Mnemonic::Mov if i.memory_base() == Register::RSP => {
                assert!(is_slot(i));
                r11 = Some(u64::from(state));
            }
            Mnemonic::Mov => r11 = Some(i.immediate(1)),
            Mnemonic::Lea if i.op0_register() == Register::RSP => {}
            Mnemonic::Lea => r11 = r11.map(|r| r + i.memory_displacement64()),
            Mnemonic::Call | Mnemonic::Jmp => match code.refs.iter().find(|r| u64::from(r.offset) == i.ip() + 1) {
                Some(r) => {
                    assert!(entered.is_none(), "it enters twice");
                    let way = code.enters.iter().find(|e| e.0 == r.offset).map(|e| e.1);
                    entered = Some((way, r11.map(|r| r as u32)));
                    if i.mnemonic() == Mnemonic::Jmp {
                        break;
                    }
                }
                None => at = i.near_branch_target(),
            },
            other => panic!("{other:?}"),
        }
    }
    let (way, state) = entered.expect("it goes somewhere");
    (way, state, at)
}

fn ways() -> Vec<(Way, u64)> {
    let mut ways = Vec::new();
    for state in 0..300u32 {
        let way = match state % 7 {
            0 | 1 => Way::Original,
            2 => clone(3, None),
            3 => clone(4, Some(state)),
            4 => clone(4, Some(0)),
            _ => clone(5, Some(7)),
        };
        ways.push((way, u64::from(state * state % 97)));
    }
    ways
}

fn expected(way: Way) -> (Option<CloneId>, Option<u32>) {
    match way {
        Way::Original => (None, None),
        Way::Clone { clone, state } => (Some(clone), state),
    }
}

#[test]
fn compares_choose_the_way_of_each_state_and_go_on_behind() {
    for count in [2, 3, 5, 40, 300] {
        let ways = &ways()[..count];
        for (is_tail, depth, stride) in [(false, 0, 1), (false, 0x88, WAY), (true, 0, 1)] {
            let calling = Calling { callee: Block::new(1), is_tail, depth: Some(depth), stride };
            let code = calling.by_compares(ways);
            for (state, &(way, _)) in (0..).zip(ways) {
                let (entered, passed, end) = run(&code, state * stride, depth);
                assert_eq!((entered, passed), expected(way), "state {state} of {count}");
                assert!(is_tail || end == code.bytes.len() as u64);
            }
            assert!(code.refs.is_sorted_by_key(|r| r.offset) && code.enters.is_sorted());
            assert!(code.deeper.is_sorted_by_key(|d| d.0));
        }
    }
}

#[test]
fn out_of_line_the_way_of_each_state_is_where_the_state_says() {
    let ways = ways();
    let code = table(Block::new(1), &ways);
    for (state, &(way, _)) in (0u32..).zip(&ways) {
        let start = state * WAY;
        let within = |offset: u32| (start..start + WAY).contains(&offset);
        let mut one = NewCode { bytes: code.bytes[start as usize..(start + WAY) as usize].to_vec(), ..NewCode::default() };
        one.refs = code.refs.iter().filter(|r| within(r.offset)).map(|r| RefData { offset: r.offset - start, ..*r }).collect();
        one.enters = code.enters.iter().filter(|e| within(e.0)).map(|e| (e.0 - start, e.1)).collect();
        let (entered, passed, _) = run(&one, 0, 0);
        assert_eq!((entered, passed), expected(way), "state {state}");
    }
    for (is_tail, depth) in [(false, 0x90), (true, 0)] {
        let calling = Calling { callee: Block::new(1), is_tail, depth: Some(depth), stride: WAY };
        let code = calling.by_table(CloneId::new(6));
        let found = instructions(&code);
        let add = found.values().find(|i| i.mnemonic() == Mnemonic::Add).expect("it adds the state");
        assert_eq!((add.op0_register(), add.memory_displacement64()), (Register::R11, u64::from(depth)));
        assert_eq!(*code.enters, [(3, CloneId::new(6))]);
        let last = found.values().max_by_key(|i| i.ip()).expect("it goes there");
        assert_eq!((last.mnemonic(), last.op0_register()), (if is_tail { Mnemonic::Jmp } else { Mnemonic::Call }, Register::R11));
    }
}

#[test]
fn states_that_are_only_shifted_are_not_compared() {
    let shifted: Vec<(Way, u64)> = (0..5).map(|s| (clone(2, Some(s + 3)), 1)).collect();
    let calling = Calling { callee: Block::new(1), is_tail: false, depth: Some(24), stride: 1 };
    let (to, shift) = calling.shift(&shifted).expect("they are shifted");
    let code = calling.shifted(to, shift);
    assert_eq!(run(&code, 4, 24), (Some(CloneId::new(2)), Some(7), code.bytes.len() as u64));
    assert_eq!(calling.shift(&ways()), None);
    assert_eq!(Calling { stride: WAY, ..calling }.shift(&shifted), None);
}

#[test]
fn a_copy_keeps_its_state_below_the_return_address_until_it_leaves() {
    let depth = |code: &NewCode| -> Vec<(u64, u8)> {
        let mut offsets: Vec<u64> = instructions(code).into_keys().collect();
        offsets.sort_unstable();
        let at = |offset: u64| code.deeper.iter().rfind(|d| u64::from(d.0) <= offset).map_or(KEPT, |d| d.1);
        offsets.into_iter().map(|offset| (offset, at(offset))).collect()
    };
    assert_eq!(depth(&keep_state()), [(0, 0), (2, 8)]);
    assert_eq!(depth(&leave(&[0xc3], &[])), [(0, 16), (5, 0)]);
    let calling = Calling { callee: Block::new(1), is_tail: true, depth: Some(0), stride: 1 };
    let code = calling.by_compares(&[(Way::Original, 1), (clone(1, None), 1)]);
    // cmp, jae; lea, jmp; lea, jmp.
    assert_eq!(depth(&code).into_iter().map(|d| d.1).collect::<Vec<u8>>(), [16, 16, 16, 0, 16, 0]);
}

#[test]
fn constants_are_moved_by_the_shortest_instruction_that_touches_no_flag() {
    let bytes = |register, number: i64| move_constant(register, Constant::Number(number.cast_unsigned()), |_| None).bytes;
    assert_eq!(bytes(7, 5), [0xbf, 5, 0, 0, 0]);
    assert_eq!(bytes(9, 5), [0x41, 0xb9, 5, 0, 0, 0]);
    assert_eq!(bytes(6, -2), [0x48, 0xc7, 0xc6, 0xfe, 0xff, 0xff, 0xff]);
    assert_eq!(bytes(15, 1 << 40), [0x49, 0xbf, 0, 0, 0, 0, 0, 1, 0, 0]);
    let address = move_constant(8, Constant::Address(lifter::Va(0x2000)), |_| None);
    assert_eq!(address.bytes, [0x4c, 0x8d, 0x05, 0, 0, 0, 0]);
}
