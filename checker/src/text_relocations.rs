//! Places in code into which the loader writes: `DT_TEXTREL`.
//!
//! A relocation names a place and no instruction. So an instruction into which the loader writes must stay where it is, with what stands around the place, and must have no copy: there nothing would
//! be written, and other code in its place would be spoiled.

use rustc_hash::FxHashSet;

use crate::leftover::each_instruction;
use crate::report::{Violation, ViolationKind};
use crate::walk::{Relation, Side};

/// Bytes that a relocation writes at most, and as many before them.
const AROUND: usize = 8;

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, relation: &Relation, violations: &mut Vec<Violation>) {
    let mut places: Vec<u64> = input.image.slots.iter().map(|slot| slot.0).filter(|&place| input.image.in_code(place)).collect();
    if places.is_empty() {
        return;
    }
    places.sort_unstable();
    for &place in &places {
        let around = |side: &Side<'_>| {
            let before = side.image.at(place.wrapping_sub(AROUND as u64), AROUND).map(<[u8]>::to_vec);
            (before, side.image.at(place, AROUND).map(<[u8]>::to_vec))
        };
        if around(input) != around(output) {
            violations.push(Violation::new(
                ViolationKind::Relocation,
                place,
                "the loader writes into code that is other code now",
            ));
        }
    }
    let mut written = FxHashSet::default();
    each_instruction(input, |address, inst| {
        let first = places.partition_point(|&place| place + AROUND as u64 <= address);
        if places.get(first).is_some_and(|&place| place < address + u64::from(inst.len)) {
            written.insert(address);
        }
    });
    for (from, to) in relation.pairs(output.code.size()) {
        let (from, to) = (input.code.address(from), output.code.address(to));
        if from != to && written.contains(&from) {
            let message = format!("stands for the input's {from:#x}, into which the loader writes");
            violations.push(Violation::new(ViolationKind::Relocation, to, message));
        }
    }
}
