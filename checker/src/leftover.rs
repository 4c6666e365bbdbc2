//! Code that no pair reaches: matched by content; and what then stays unexplained.
//!
//! **Method.** Each stretch of input code that was not reached is first tried at its own address (pinned code), then against the unreached
//! stretches of the output with the same [`fingerprint`]: whole functions first, of these the ones with one counterpart, then what may
//! be a function's inside. Equal functions may change places: nothing tells them apart. Last, output code that nothing reaches may be a
//! further copy of code that stands elsewhere too (dead functions of a guarded relink). A match is a trial of the product walk, so a
//! wrong guess changes nothing. At last every byte of the output's code is passed by the walk, padding, a table, or the same byte as at
//! the same address of the input.
//!
//! **Terminates**: each stretch is tried against at most [`CANDIDATES_MAX`] others, in each of at most [`ROUNDS_MAX`] rounds.

mod fingerprint;

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::Kind;
use crate::report::ViolationKind;
use crate::walk::{Bits, Pair, Reach, Side, Walk};
use fingerprint::{Detail, Of, fingerprint};

const CANDIDATES_MAX: usize = 64;
/// Matched code tells what its callees are, and so what their other callers are.
const ROUNDS_MAX: usize = 12;

/// What is matched in a pass; each is less certain than the one before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Pass {
    /// Functions that have only one possible counterpart.
    Clear,
    Functions,
    Pieces,
    /// Functions and pieces that have a counterpart already; first what no other unreached code leads to.
    CopiedRoots,
    CopiedFunctions,
    Copies,
}

const PASSES: [Pass; 6] = [Pass::Clear, Pass::Functions, Pass::Pieces, Pass::CopiedRoots, Pass::CopiedFunctions, Pass::Copies];

/// Matches what is left of both sides, then reports what stays.
pub(crate) fn settle(walk: &mut Walk<'_, '_>) {
    let mut left = match_in_place(walk);
    for _ in 0..ROUNDS_MAX {
        // The most certain matches may make others certain.
        let found = PASSES.into_iter().any(|pass| {
            let found = match_by_content(walk, &left, pass);
            walk.settle_tries();
            found
        });
        if !found {
            break;
        }
        left = match_in_place(walk);
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
    for address in leaders(walk, Of::Output, &walk.relation.covered) {
        let is_free = walk.output.code.index(address).is_some_and(|index| !walk.relation.covered.contains(index));
        if is_free && walk.is_untouched(address) {
            try_pair(walk, address, address);
        }
    }
    let mut lost = Vec::new();
    for address in leaders(walk, Of::Input, &walk.relation.seen) {
        if walk.input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index)) {
            continue;
        }
        let is_free = walk.output.code.index(address).is_some_and(|index| !walk.relation.covered.contains(index));
        if !is_free || !try_pair(walk, address, address) {
            lost.push(address);
        }
    }
    lost
}

fn match_by_content(walk: &mut Walk<'_, '_>, lost: &[u64], pass: Pass) -> bool {
    let mut candidates: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    let is_copy = matches!(pass, Pass::CopiedRoots | Pass::CopiedFunctions | Pass::Copies);
    let detail = if is_copy || pass == Pass::Pieces { Detail::Shape } else { Detail::Full };
    let inner = if pass == Pass::CopiedRoots { led_to(walk) } else { FxHashSet::default() };
    for address in leaders(walk, Of::Output, &walk.relation.covered) {
        // What is untouched needs no other origin.
        if is_copy && walk.is_untouched(address) || inner.contains(&address) {
            continue;
        }
        if let Some(print) = fingerprint(walk, Of::Output, detail, address) {
            candidates.entry(print).or_default().push(address);
        }
    }
    if candidates.is_empty() {
        return false;
    }
    let functions: BTreeSet<u64> = walk.input.unwind.fdes.iter().map(|fde| walk.input_leads_to(fde.start)).collect();
    let wanted: Vec<u64> = match pass {
        Pass::Clear | Pass::Functions => lost.iter().copied().filter(|address| functions.contains(address)).collect(),
        Pass::Pieces => lost.to_vec(),
        Pass::CopiedRoots | Pass::CopiedFunctions => functions.into_iter().collect(),
        Pass::Copies => leaders(walk, Of::Input, &Bits::default()),
    };
    // All prints are taken before the first match, because matches change them.
    let prints: Vec<(u64, u64)> =
        wanted.into_iter().filter_map(|address| Some((address, fingerprint(walk, Of::Input, detail, address)?))).collect();
    let mut any = false;
    for (address, print) in prints {
        let is_seen = walk.input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index));
        let Some(list) = candidates.get_mut(&print) else { continue };
        list.retain(|&output| walk.output.code.index(output).is_some_and(|index| !walk.relation.covered.contains(index)));
        let size = list.len().min(CANDIDATES_MAX);
        match pass {
            Pass::CopiedRoots | Pass::CopiedFunctions | Pass::Copies => {
                for &output in &list[..size] {
                    any |= try_pair(walk, address, output);
                }
            }
            Pass::Clear if size > 1 => {}
            _ if is_seen => {}
            _ => any |= list[..size].iter().any(|&output| try_pair(walk, address, output)),
        }
    }
    any
}

/// Where unreached code of the output jumps, and what follows its calls.
fn led_to(walk: &Walk<'_, '_>) -> FxHashSet<u64> {
    let side = walk.output;
    let mut found = FxHashSet::default();
    for (start, end) in ranges(side) {
        let mut address = start;
        while address < end {
            let Some(index) = side.code.index(address) else { break };
            let Some(inst) = side.inst(address) else {
                address += 1;
                continue;
            };
            let after = address + u64::from(inst.len);
            if !walk.relation.covered.contains(index) {
                match inst.kind {
                    Kind::Jump | Kind::Branch | Kind::Loop => drop(found.insert(side.target(address, inst))),
                    Kind::Call => found.extend([side.target(address, inst), after]),
                    Kind::IndirectCall => drop(found.insert(after)),
                    _ => {}
                }
            }
            address = after;
        }
    }
    found
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
fn leaders(walk: &Walk<'_, '_>, of: Of, passed: &Bits) -> Vec<u64> {
    let side = if of == Of::Input { walk.input } else { walk.output };
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
                is_leader = inst.ends_flow() || walk.never_comes_back(of == Of::Input, address, inst);
            }
            address += u64::from(inst.len);
        }
    }
    leaders
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
    // Of equal functions that nothing reaches one may have been found in another's place: any one stands for all.
    let prints: FxHashSet<u64> = match missing.is_empty() {
        true => FxHashSet::default(),
        false => {
            let pieces = leaders(walk, Of::Output, &Bits::default());
            pieces.into_iter().filter_map(|address| fingerprint(walk, Of::Output, Detail::Full, address)).collect()
        }
    };
    missing.retain(|&(start, _)| fingerprint(walk, Of::Input, Detail::Full, start).is_none_or(|print| !prints.contains(&print)));
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
    if let Some(inst) = inst.filter(|inst| inst.kind == Kind::Jump && walk.leads_nowhere(address, *inst)) {
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
