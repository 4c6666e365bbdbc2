//! Flag liveness on programs of this machine, against what can be told from the first instruction of a block that has to do with flags.

use analysis::FlagLiveness;
use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic};
use lifter::elf::Unwind;
use lifter::x86::decode_block;
use lifter::{Image, lift};

const PROGRAMS: [&str; 6] = ["/usr/bin/xz", "/usr/bin/gzip", "/usr/bin/bzip2", "/usr/bin/perl", "/usr/bin/bash", "/usr/bin/git"];

/// Whether the flags are live at a block's start, where its first instruction that has to do with flags settles it.
fn verdict(instructions: &[Instruction]) -> Option<bool> {
    use Mnemonic::*;
    for instruction in instructions {
        let is_conditional = instruction.condition_code() != ConditionCode::None;
        let is_carry_only = matches!(instruction.condition_code(), ConditionCode::b | ConditionCode::ae);
        match instruction.mnemonic() {
            _ if is_conditional && !is_carry_only => return Some(true),
            Cmp | Test | Add | Sub | Neg => return Some(false),
            // AF is undefined after these, so it may pass through.
            Xor | And | Or => return None,
            Mov | Movzx | Movsx | Movsxd | Lea | Push | Pop | Nop | Endbr64 => {}
            _ => return None,
        }
        if instruction.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

#[test]
fn what_a_block_begins_with_agrees_with_its_liveness() {
    for path in PROGRAMS {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let image = Image::parse(&bytes).unwrap();
        let program = lift(&image, Unwind::parse(&image).unwrap()).unwrap();
        let liveness = FlagLiveness::compute(&image, &program);
        let mut num_live = 0;
        for (block, data) in program.blocks.iter().filter(|(_, data)| program.funcs[data.func].is_movable()) {
            num_live += usize::from(liveness.live_at_block_start(block));
            if let Some(is_live) = verdict(&decode_block(&image, &program, block)) {
                assert_eq!(liveness.live_at_block_start(block), is_live, "{path}: {block} at {}", data.start);
            }
        }
        // Compilers write flags right before they read them; were these many, something would be lost between calls.
        assert!(num_live * 20 < program.blocks.len(), "{path}: {num_live} of {} blocks", program.blocks.len());
        for (func, data) in program.funcs.iter().filter(|(_, data)| data.is_movable()) {
            assert!(!liveness.live_at_block_start(data.entry), "{path}: {func} reads flags that its callers set");
        }
    }
}
