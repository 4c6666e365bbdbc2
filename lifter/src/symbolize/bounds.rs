//! Code that the program knows by where it begins and ends.
//!
//! **Sections.** For a section whose name could be that of a variable, the linker defines `__start_NAME` and `__stop_NAME`. A program may ask whether an address lies between these two, and the second names
//! nothing that is in the section: it is the address of what happens to stand there. So where the end of such a section of code is named, all of the section stays, and so does what begins at its end.
//!
//! **Pages.** libffi's trampolines fill a page, and read their data from one page behind themselves: the page is mapped a second time, with a page of data behind it. What begins a page
//! and reads words out of other code stays.
//!
//! Source: GNU ld's manual, "Input Section Example"; libffi's `src/tramp.c` and `src/x86/unix64.S`.

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::relocated_addresses;
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Unit, unit_at};
use crate::elf::image::SectionData;
use crate::entity::EntityId;
use crate::ir::PinReason;

const PAGE: u64 = 4096;

impl PinContext<'_> {
    pub(super) fn pin_by_bounds(&self, pins: &mut Pins) {
        let sections = self.image.sections.iter().filter(|(_, section)| self.may_have_bounds(section));
        for (id, section) in sections.filter(|(_, section)| self.is_end_named(section.end())) {
            let end = section.end();
            for (unit, _) in self.units.iter().filter(|(_, data)| data.section == id || data.start == end) {
                pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            }
        }
        for (unit, data) in self.units.iter() {
            if data.start.0.is_multiple_of(PAGE) && self.reads_other_code(unit) {
                pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            }
        }
    }

    /// Whether the linker defines its bounds for who asks.
    fn may_have_bounds(&self, section: &SectionData<'_>) -> bool {
        let is_part = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
        let is_name = section.name.bytes().all(is_part) && section.name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        section.is_alloc() && section.is_executable() && is_name
    }

    fn is_end_named(&self, end: Va) -> bool {
        let by_code = |survey: &Survey| {
            let numbers = survey.absolutes.iter().map(|number| number.value);
            survey.places().chain(numbers).any(|place| place == end)
        };
        relocated_addresses(self.image).any(|(_, target)| target == end)
            || self.words.iter().any(|&(_, value)| value == end)
            || self.surveys.iter().any(by_code)
    }

    fn reads_other_code(&self, unit: Unit) -> bool {
        let mut names = self.surveys[unit.index()].names.iter();
        names.any(|name| name.how == How::Memory && unit_at(self.units, name.target).is_some_and(|target| target != unit))
    }
}
