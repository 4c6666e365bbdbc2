//! Function symbols against the functions of the program, and what the jumps at old entries would overwrite.

use crate::address::Va;
use crate::elf::image::SectionData;
use crate::ground_truth::oracle::code_place;
use crate::ground_truth::{Comparison, GroundTruth};
use crate::ir::{BlockFlags, PinReason};

/// The bytes of a direct jump.
const JUMP_LEN: u64 = 5;

impl Comparison<'_> {
    pub(super) fn compare_starts(&self, truth: &mut GroundTruth) {
        let starts = self.oracle.starts();
        truth.num_starts = starts.len();
        let mut range_starts: Vec<Va> = self.program.ranges.iter().map(|r| r.start).collect();
        range_starts.sort();
        let is_found = |va: Va| {
            let block = self.program.block_at(va);
            let is_entered = block.is_some_and(|b| self.program.blocks[b].flags.contains(BlockFlags::ENTRY));
            is_entered || range_starts.binary_search(&va).is_ok()
        };
        truth.missed_starts = starts.iter().copied().filter(|&va| !is_found(va)).collect();
        let funcs = self.program.funcs.values().filter(|f| f.pin != Some(PinReason::LinkerSection));
        let entries = funcs.map(|f| self.program.blocks[f.entry].start);
        truth.num_extra_starts = entries.filter(|va| starts.binary_search(va).is_err()).count();
        if self.is_guard() {
            truth.overwritten = self.overwritten(&starts);
        }
    }

    /// True places of code that lie inside the first bytes of a function's entry, where a jump to its copy may be written.
    fn overwritten(&self, starts: &[Va]) -> Vec<Va> {
        let image = self.oracle.image;
        let relocs_of = |section: &SectionData<'_>| image.static_relocs_in(section.sh_addr, section.end()).iter();
        let mut places: Vec<Va> = starts.to_vec();
        places.extend(self.oracle.difference_targets());
        places.extend(self.oracle.code_sections().flat_map(relocs_of).filter_map(|r| code_place(image, r, true)));
        places.extend(self.oracle.data_sections().flat_map(relocs_of).filter_map(|r| code_place(image, r, false)));
        places.sort();
        places.dedup();
        let mut overwritten = Vec::new();
        for func in self.program.funcs.values().filter(|f| f.is_movable()) {
            let entry = self.program.blocks[func.entry].start;
            let after = self.program.blocks_by_address.partition_point(|&b| self.program.blocks[b].start <= entry);
            let next = self.program.blocks_by_address.get(after).map(|&b| self.program.blocks[b].start);
            if next.is_some_and(|next| next < entry + JUMP_LEN) {
                continue;
            }
            let first = places.partition_point(|&va| va <= entry);
            overwritten.extend(places[first..].iter().take_while(|&&va| va < entry + JUMP_LEN));
        }
        overwritten.sort();
        overwritten
    }
}
