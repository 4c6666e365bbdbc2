//! Places around system calls that the program knows.
//!
//! **Problem.** The kernel says where a system call was made, by the address behind it: in `rcx`, to filters of system calls, to handlers of signals. A program that has the address of the label there may
//! compare the two. A walk from the label and one over the call come to the same code, wherever the label is.
//!
//! **Rule.** Let an instruction that calls the kernel end where an address leads that the program holds, or begin there. Then each instruction of the output that stands for it ends or begins where the address
//! leads that the output holds in its place. The same holds of a breakpoint that ends there, in the same function: its handler is told that address too. There is one such address at most, so no copy of the instruction is elsewhere.
//!
//! **What is taken for granted.** Nobody compares where an entry of a jump table leads that nothing else names.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Walk;
use crate::data::{linked_addresses, names_code, words};
use crate::image::Slot;
use crate::report::{Violation, ViolationKind};
use crate::tables::instruction_before;

/// `syscall`, `sysenter`, `int $0x80`.
const SYSTEM_CALLS: [&[u8]; 3] = [&[0x0f, 0x05], &[0x0f, 0x34], &[0xcd, 0x80]];

/// `int3`, in its short form and its long one, and `int1`.
const BREAKPOINTS: [&[u8]; 3] = [&[0xcc], &[0xcd, 0x03], &[0xf1]];

/// A place that the program knows: how far it is behind the instruction that calls the kernel, its address in the input, and in the output.
#[derive(Copy, Clone)]
struct Place {
    behind: u64,
    input: u64,
    output: u64,
}

impl Walk<'_, '_> {
    /// Reports instructions that call the kernel and from which a place that the program knows was parted.
    pub(crate) fn report_system_calls(&mut self) {
        let places = self.places_at_system_calls();
        if places.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for (input, output) in self.relation.pairs(self.output.code.size()) {
            let Some(places) = places.get(&self.input.code.address(input)) else { continue };
            let to = self.output.code.address(output);
            if let Some(place) = places.iter().find(|place| to + place.behind != place.output) {
                let message = format!(
                    "enters the kernel, and what the input's {:#x} is the address of stands at {:#x}, not {} behind",
                    place.input, place.output, place.behind
                );
                found.push(Violation::new(ViolationKind::Conflict, to, message));
            }
        }
        self.violations.extend(found);
    }

    /// By the address of the instruction.
    fn places_at_system_calls(&self) -> FxHashMap<u64, Vec<Place>> {
        let around = |input: u64| {
            let before = instruction_before(self, input).map(|(call, _)| call).filter(|&call| self.is_told_behind(call, input));
            let call = before.or_else(|| Some(input).filter(|&call| self.is_system_call(call)))?;
            Some((call, input - call))
        };
        let is_near = |input: u64| {
            let is_behind = |len: u64| input.checked_sub(len).is_some_and(|call| self.is_told_behind(call, input));
            is_behind(1) || is_behind(2) || self.is_system_call(input)
        };
        let named: Vec<(u64, u64)> = self.relation.named().filter(|&(input, _)| is_near(input)).collect();
        let known = self.known_apart_from_tables(named.iter().map(|place| place.0).collect());
        let mut places: FxHashMap<u64, Vec<Place>> = FxHashMap::default();
        for (input, output) in named.into_iter().filter(|(input, _)| known.contains(input)) {
            if let Some((call, behind)) = around(input) {
                places.entry(call).or_default().push(Place { behind, input, output });
            }
        }
        places
    }

    /// Whether the kernel says of a program at an instruction that it is at its end, `behind`. Breakpoints between functions are filler.
    fn is_told_behind(&self, address: u64, behind: u64) -> bool {
        let bytes = self.input.image.at(address, (behind - address) as usize).unwrap_or(&[]);
        let function = self.input.unwind.fde_at(address);
        let is_inside = || function.is_some() && function == self.input.unwind.fde_at(behind);
        SYSTEM_CALLS.contains(&bytes) || BREAKPOINTS.contains(&bytes) && is_inside()
    }

    fn is_system_call(&self, address: u64) -> bool {
        self.input.image.at(address, 2).is_some_and(|bytes| SYSTEM_CALLS.contains(&bytes))
            && self.input.code.index(address).is_some_and(|index| self.survey.may_be_instruction(index))
    }

    /// Those of some addresses that instructions, relocations or symbols name, or words of data that are still the same.
    fn known_apart_from_tables(&self, wanted: FxHashSet<u64>) -> FxHashSet<u64> {
        if wanted.is_empty() {
            return wanted;
        }
        let image = &self.input.image;
        let symbol_at = |index: usize| image.elf.dynsyms.get(index).filter(|symbol| names_code(image, symbol));
        let mut known: FxHashSet<u64> = wanted.iter().copied().filter(|&address| self.survey.is_referenced(address)).collect();
        let mut note = |address: u64| {
            if wanted.contains(&address) {
                known.insert(address);
            }
        };
        for &(_, slot) in &image.slots {
            match slot {
                Slot::Relative(address) | Slot::Resolver(address) => note(address),
                Slot::Symbol { symbol, addend, .. } => {
                    symbol_at(symbol).into_iter().for_each(|symbol| note(symbol.st_value.wrapping_add_signed(addend)));
                }
            }
        }
        image.elf.dynsyms.iter().filter(|symbol| names_code(image, symbol)).for_each(|symbol| note(symbol.st_value));
        if image.is_position_dependent() {
            linked_addresses(image).into_iter().for_each(|(_, address)| note(address));
            let is_kept = |&(place, value): &(u64, u64)| self.output.image.u64_at(place) == Some(value);
            words(image).filter(is_kept).for_each(|(_, value)| note(value));
        }
        known
    }
}
