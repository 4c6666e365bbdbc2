//! Code that no pair reaches: matched by content; and what then stays unexplained.
//!
//! **Method.** Each stretch of input code that was not reached is first tried at its own address (pinned code), then against the unreached
//! stretches of the output with the same fingerprint: a hash of the instructions up to the first fork, along jumps, without the fields
//! that may move. A match is a trial of the product walk, so a wrong guess changes nothing. At last every byte of
//! the output's code is passed by the walk, padding, a table, or the same byte as at the same address of the input.
//!
//! **Terminates**: each stretch is tried against at most [`CANDIDATES_MAX`] others, in each of [`ROUNDS`] rounds.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::decode::{Inst, Kind, Shape};
use crate::report::ViolationKind;
use crate::walk::{Bits, Pair, Reach, Side, Walk};

const CANDIDATES_MAX: usize = 64;
/// Matched code may hold jump tables that reach more code; a third round never found anything.
const ROUNDS: usize = 2;
/// Instructions in a fingerprint.
const FINGERPRINT_MAX: usize = 16;

/// Matches what is left of both sides, then reports what stays.
pub(crate) fn settle(walk: &mut Walk<'_, '_>) {
    for _ in 0..ROUNDS {
        let lost = match_in_place(walk);
        // Code that has only one possible counterpart tells where the code that it calls has gone.
        let mut found = match_by_content(walk, &lost, 1);
        walk.settle_tries();
        found |= match_by_content(walk, &lost, CANDIDATES_MAX);
        if !found {
            break;
        }
    }
    report_missing(walk);
    report_unexplained(walk);
}

fn try_pair(walk: &mut Walk<'_, '_>, input: u64, output: u64) -> bool {
    let is_right = walk.attempt(Pair { input, output, origin: output, reach: Reach::Flow });
    if is_right {
        walk.stats.matched_by_content += 1;
        walk.settle();
    }
    is_right
}

/// Tries unreached input code at its own address; gives what is elsewhere.
fn match_in_place(walk: &mut Walk<'_, '_>) -> Vec<u64> {
    let mut lost = Vec::new();
    for address in leaders(walk.input, &walk.relation.seen) {
        let is_seen = |walk: &Walk<'_, '_>| walk.input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index));
        if is_seen(walk) {
            continue;
        }
        let is_free = walk.output.code.index(address).is_some_and(|index| !walk.relation.covered.contains(index));
        if !is_free || !try_pair(walk, address, address) {
            lost.push(address);
        }
    }
    lost
}

fn match_by_content(walk: &mut Walk<'_, '_>, lost: &[u64], candidates_max: usize) -> bool {
    if lost.is_empty() {
        return false;
    }
    let mut candidates: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    for address in leaders(walk.output, &walk.relation.covered) {
        if let Some(print) = fingerprint(walk.output, address) {
            candidates.entry(print).or_default().push(address);
        }
    }
    let mut any = false;
    for &address in lost {
        if walk.input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index)) {
            continue;
        }
        let Some(print) = fingerprint(walk.input, address) else { continue };
        let Some(list) = candidates.get_mut(&print) else { continue };
        list.retain(|&output| walk.output.code.index(output).is_some_and(|index| !walk.relation.covered.contains(index)));
        let tried = if candidates_max == 1 && list.len() > 1 { &[][..] } else { &list[..list.len().min(candidates_max)] };
        any |= tried.iter().any(|&output| try_pair(walk, address, output));
    }
    any
}

/// The frame descriptions and the gaps between them, by address.
fn ranges(side: &Side<'_>) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    for area in side.code.areas() {
        let mut at = area.start;
        let first = side.unwind.fdes.partition_point(|fde| fde.end <= area.start);
        for fde in side.unwind.fdes[first..].iter().take_while(|fde| fde.start < area.end()) {
            if at < fde.start {
                ranges.push((at, fde.start));
            }
            if at < fde.end {
                ranges.push((fde.start.max(at), fde.end.min(area.end())));
                at = fde.end;
            }
        }
        if at < area.end() {
            ranges.push((at, area.end()));
        }
    }
    ranges
}

/// The starts of straight pieces of code that are not in `passed`.
fn leaders(side: &Side<'_>, passed: &Bits) -> Vec<u64> {
    let mut leaders = Vec::new();
    for (start, end) in ranges(side) {
        let mut address = start;
        let mut is_leader = true;
        while address < end {
            let Some(index) = side.code.index(address) else { break };
            let Some(inst) = side.inst(address) else {
                (address, is_leader) = (address + 1, true);
                continue;
            };
            if passed.contains(index) {
                is_leader = true;
            } else if !matches!(inst.kind, Kind::Nop | Kind::Trap) {
                if is_leader {
                    leaders.push(address);
                }
                is_leader = inst.ends_flow();
            }
            address += u64::from(inst.len);
        }
    }
    leaders
}

fn fingerprint(side: &Side<'_>, start: u64) -> Option<u64> {
    let mut hasher = FxHasher::default();
    let mut address = start;
    let mut left = FINGERPRINT_MAX;
    let mut jumps = 0;
    while left > 0 {
        let inst = side.inst(address)?;
        if inst.kind == Kind::Jump {
            jumps += 1;
            if jumps > FINGERPRINT_MAX {
                break;
            }
            address = side.target(address, inst);
            continue;
        }
        if inst.kind != Kind::Nop {
            hash_inst(side.code.bytes(address, inst), inst, &mut hasher);
            left -= 1;
            if inst.ends_flow() || matches!(inst.kind, Kind::Branch | Kind::Loop | Kind::Call | Kind::Trap) {
                break;
            }
        }
        address += u64::from(inst.len);
    }
    Some(hasher.finish())
}

fn hash_inst(bytes: &[u8], inst: Inst, hasher: &mut FxHasher) {
    (inst.kind as u8).hash(hasher);
    match inst.kind {
        Kind::Branch => (bytes.get(Shape::of(bytes).opcode).map_or(0, |opcode| opcode & 14)).hash(hasher),
        Kind::Call | Kind::Loop => {}
        _ if inst.disp != 0 => bytes[..usize::from(inst.disp).min(bytes.len())].hash(hasher),
        _ => bytes.hash(hasher),
    }
}

/// Functions of the input of which nothing was found.
fn report_missing(walk: &mut Walk<'_, '_>) {
    let input = walk.input;
    let mut missing = Vec::new();
    for fde in &input.unwind.fdes {
        let mut address = fde.start;
        // A function is looked for where its first real instruction is.
        while let Some(inst) = input.inst(address).filter(|inst| inst.kind == Kind::Nop && address < fde.end) {
            address += u64::from(inst.len);
        }
        if input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index)) || address >= fde.end {
            continue;
        }
        let size = usize::try_from(fde.end - fde.start).unwrap_or(usize::MAX);
        if input.image.at(fde.start, size) != walk.output.image.at(fde.start, size) {
            missing.push((fde.start, size));
        }
    }
    for (start, size) in missing {
        let message =
            format!("{size} bytes of the input's code with a frame description have no counterpart (address of the input)");
        walk.report(ViolationKind::MissingFunction, start, message);
    }
}

fn report_unexplained(walk: &mut Walk<'_, '_>) {
    let output = walk.output;
    for area in output.code.areas() {
        let mut address = area.start;
        while address < area.end() {
            let Some(index) = output.code.index(address) else { break };
            if walk.relation.covered.contains(index) {
                address += 1;
                continue;
            }
            // An old entry that now jumps to the function's copy.
            if output.inst(address).is_some_and(|inst| inst.kind == Kind::Jump)
                && walk.input.code.index(address).is_some_and(|index| walk.survey.is_boundary(index))
                && walk.attempt(Pair { input: address, output: address, origin: address, reach: Reach::Flow })
                && walk.relation.covered.contains(index)
            {
                continue;
            }
            if let Some(size) = explained_size(walk, address, area.end()) {
                address += size;
                continue;
            }
            let rest = (address..area.end())
                .take_while(|&at| output.code.index(at).is_some_and(|index| !walk.relation.covered.contains(index)));
            let size = rest.count() as u64;
            let name = output.image.section_at(address).map_or("code", |section| section.name);
            walk.report(
                ViolationKind::Unexplained,
                address,
                format!("up to {size} bytes of {name} correspond to nothing in the input"),
            );
            address += size;
        }
    }
}

/// The size of the padding or of the bytes that equal the input's at the same address.
fn explained_size(walk: &mut Walk<'_, '_>, address: u64, end: u64) -> Option<u64> {
    let inst = walk.output.inst(address);
    if let Some(inst) = inst
        && (matches!(inst.kind, Kind::Nop | Kind::Trap) || walk.output.code.bytes(address, inst) == [0x0f, 0x0b])
        && address + u64::from(inst.len) <= end
    {
        return Some(u64::from(inst.len));
    }
    let byte = walk.output.image.at(address, 1)?;
    if byte == [0] {
        return Some(1);
    }
    let is_same = walk.input.image.in_code(address) && walk.input.image.at(address, 1) == Some(byte);
    walk.stats.identical_bytes += u64::from(is_same);
    is_same.then_some(1)
}
