//! Code of which the program knows the bounds.
//!
//! **Problem.** The linker defines `__stop_NAME` for a section whose name could be that of a variable. It is the address of what happens to stand behind the section, and a walk compares it with that.
//!
//! **Rule.** Where an instruction or a relocated word names the end of such a section of code, all functions in it stay as they are, where they are, and the output names the same address.
//!
//! Functions whose order code asks for ([`crate::prove::compared_by_order`]) stay in the same way, with all between them.
//!
//! What begins a page and reads words out of other code stays too: such trampolines are mapped a second time, with a page of data behind them (libffi), and find their data by how far that is.
//!
//! Source: GNU ld's manual, "Input Section Example".

use super::Walk;
use crate::image::{Section, Slot};
use crate::report::ViolationKind;

impl Walk<'_, '_> {
    /// Notes the functions that have to stay because of the bounds of their section.
    pub(crate) fn find_bounded(&mut self) {
        let unwind = &self.input.unwind;
        for (start, end) in self.bounded_sections() {
            let first = unwind.fdes.partition_point(|fde| fde.start < start);
            let inside = (first as u32..).zip(unwind.fdes[first..].iter().take_while(|fde| fde.start < end));
            self.places_known.extend(inside.map(|(number, _)| (end, number)));
        }
    }

    /// Notes functions that count on their place in a page.
    pub(crate) fn find_pages(&mut self) {
        self.places_known.extend(&self.survey.page_reads);
    }

    /// Notes the functions from the first to the last of those that code compares by which is above.
    pub(crate) fn find_ordered(&mut self) {
        let unwind = &self.input.unwind;
        for (at, first, last) in crate::prove::compared_by_order(self) {
            let from = unwind.fdes.partition_point(|fde| fde.start < first);
            let behind = unwind.fdes.partition_point(|fde| fde.start <= last);
            self.places_known.extend((from as u32..behind as u32).map(|number| (at, number)));
        }
    }

    /// Reports ends of such sections that the output has elsewhere.
    pub(crate) fn report_bounds(&mut self) {
        for (start, end) in self.bounded_sections() {
            let elsewhere = self.relation.named().find(|&(input, output)| input == end && output != end);
            if let Some((_, output)) = elsewhere {
                let message =
                    format!("stands for the end of the section of code at {start:#x}, whose bounds the program may ask for");
                self.report(ViolationKind::Conflict, output, message);
            }
        }
    }

    /// The starts and ends of sections of code whose end is named.
    fn bounded_sections(&self) -> Vec<(u64, u64)> {
        let image = &self.input.image;
        let is_named = |end: u64| {
            let is_held = |slot: &(u64, Slot)| matches!(slot.1, Slot::Relative(address) if address == end);
            self.survey.is_referenced(end) || image.slots.iter().any(is_held)
        };
        let sections = image.sections.iter().filter(|section| may_have_bounds(section) && image.in_code(section.address));
        let bounds = sections.map(|section| (section.address, section.address.saturating_add(section.size)));
        bounds.filter(|&(_, end)| is_named(end)).collect()
    }
}

/// Whether the linker defines them for who asks.
fn may_have_bounds(section: &Section<'_>) -> bool {
    let is_part = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    section.is_alloc()
        && section.name.bytes().all(is_part)
        && section.name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}
