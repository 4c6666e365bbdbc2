//! `.eh_frame`: call frame information, parsed into what it says of each address (DWARF 5 §6.4, LSB 5.0 §10.6).

mod cut;
mod parse;
mod replaced;
mod row;
#[cfg(test)]
mod tests;

pub(crate) use cut::Levels;
pub(crate) use parse::extent_by_search_table;

use crate::address::Va;
use crate::elf::Image;
use crate::elf::lsda::{CallSite, Lsda};
use crate::entity::{Fde, PrimaryMap};
use row::Row;

/// A common information entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CieData {
    pub code_alignment: u64,
    pub data_alignment: i64,
    pub return_register: u64,
    /// `DW_EH_PE_*` of pointers in its FDEs.
    pub fde_encoding: u8,
    /// `DW_EH_PE_*` of the LSDA pointer, if the augmentation has one.
    pub lsda_encoding: Option<u8>,
    /// The encoding and the *decoded address* of the personality: of the routine, or of the slot that holds it if the encoding is indirect.
    pub personality: Option<(u8, Va)>,
    /// Augmentation `S`.
    pub is_signal_frame: bool,
    /// Whether the rows of its entries need only be right where code stops by itself (calls, jumps, accesses to memory, traps). relift says so to itself by a no-op before the initial instructions, which unwinders
    /// pass over and no compiler writes.
    pub is_sparse: bool,
    /// Its initial instructions, opaque, without that one.
    pub instructions: Vec<u8>,
}

/// `DW_CFA_def_cfa rsp, 8` and `DW_CFA_offset` of the return address: the state at an entry, as every compiler's common entry has it.
const ENTRY_ROW: [u8; 5] = [0x0c, 7, 8, 0x90, 1];
/// DWARF's number of the return address.
const RETURN_ADDRESS: u64 = 16;

impl CieData {
    /// Whether it says of a function's first instruction what compilers say.
    pub fn is_standard(&self) -> bool {
        self.instructions.strip_prefix(&ENTRY_ROW).is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
            && self.data_alignment == -8
            && self.return_register == RETURN_ADDRESS
            && !self.is_signal_frame
    }

    /// Whether it says what another one does, and names a personality and exception tables besides.
    pub fn is_with_personality(&self, other: &Self) -> bool {
        let said = |cie: &Self| {
            let end = cie.instructions.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            (cie.data_alignment, cie.return_register, cie.is_signal_frame, cie.instructions[..end].to_vec())
        };
        let [own, others] = [self, other].map(|cie| (cie.personality.is_some(), cie.lsda_encoding.is_some()));
        own == (true, true) && others == (false, false) && said(self) == said(other)
    }
}

/// A call frame instruction that takes effect at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CfiOp {
    pub at: Va,
    /// The instruction's bytes, `DW_CFA_advance_loc*` and `DW_CFA_nop` never among them.
    pub bytes: smallvec::SmallVec<[u8; 6]>,
}

/// A frame description entry.
#[derive(Clone, Debug)]
pub struct FdeData {
    pub cie: u32,
    pub start: Va,
    pub end: Va,
    /// Into `Unwind::lsdas`.
    pub lsda: Option<u32>,
    /// The address of an exception table that is not understood. The code of this entry and the table must stay where they are.
    pub opaque_lsda: Option<Va>,
    /// In program order, addresses ascending.
    pub ops: Vec<CfiOp>,
}

/// All that the file says of unwinding.
#[derive(Clone, Debug, Default)]
pub struct Unwind {
    pub cies: Vec<CieData>,
    /// Ascending by start.
    pub fdes: PrimaryMap<Fde, FdeData>,
    /// One per entry that names one; entries that share a table have a copy each, with the same `at`.
    pub lsdas: Vec<Lsda>,
    /// Code that had an entry, in the place of which an optimizer left jumps to other code. Ascending.
    pub replaced: Vec<(Va, Va)>,
}

impl Unwind {
    /// Whether rows need only be right where code can stop by itself.
    pub fn is_sparse(&self) -> bool {
        self.cies.iter().any(|cie| cie.is_sparse)
    }

    /// Whether code was at an address that is elsewhere now.
    pub fn is_replaced(&self, va: Va) -> bool {
        let after = self.replaced.partition_point(|&(start, _)| start <= va);
        self.replaced[..after].last().is_some_and(|&(_, end)| va < end)
    }

    /// The entry that covers an address.
    pub fn fde_containing(&self, va: Va) -> Option<Fde> {
        let fdes = self.fdes.as_slice();
        let after = fdes.partition_point(|f| f.start <= va);
        let index = after.checked_sub(1)?;
        (va < fdes[index].end).then(|| crate::entity::EntityId::new(index))
    }
}

impl Unwind {
    /// Where code runs on from one entry into the next for certain, though it may be a call that the first one ends with. Ascending.
    ///
    /// relift parts an entry at a call site that lands where the entry begins, since a landing pad can't be told as the start of its own: compilers have no such pads. And where nothing is pushed, a call is
    /// none of a compiler's, which would align the stack first.
    pub(crate) fn parted(&self) -> Vec<Va> {
        let fdes = self.fdes.as_slice();
        let is_parted = |pair: &&[FdeData]| {
            let sites = pair[1].lsda.map_or(&[][..], |lsda| &self.lsdas[lsda as usize].call_sites);
            let lands_before = || sites.iter().any(|site| site.landing_pad == Some(pair[0].start));
            let [before, next] = [&pair[0], &pair[1]];
            let has_no_frame = || {
                self.row(next, Row::first_of).is_some_and(|row| row.is_at_entry() && self.row(before, Row::last_of) == Some(row))
            };
            before.end == next.start && (lands_before() || has_no_frame())
        };
        fdes.windows(2).filter(is_parted).map(|pair| pair[1].start).collect()
    }

    /// Whether unwinding is alike at the end of one entry and the start of another, as far as that is understood.
    pub(crate) fn may_run_on(&self, from: Fde, to: Fde) -> bool {
        let (last, first) = (self.row(&self.fdes[from], Row::last_of), self.row(&self.fdes[to], Row::first_of));
        last.is_none() || first.is_none() || last == first
    }

    fn row(&self, fde: &FdeData, which: impl Fn(&CieData, &FdeData) -> Option<Row>) -> Option<Row> {
        self.cies.get(fde.cie as usize).and_then(|cie| which(cie, fde))
    }

    /// The same tables with entries cut in two at places where one may begin ([`Levels::may_begin`]); these ascend.
    pub(crate) fn cut_at(mut self, places: &[Va]) -> Self {
        let mut fdes = Vec::with_capacity(self.fdes.len() + places.len());
        let mut left = places;
        for fde in std::mem::take(&mut self.fdes).into_items() {
            let end = left.partition_point(|&place| place < fde.end);
            let (inside, behind) = left.split_at(end);
            left = behind;
            match Levels::of(&self.cies[fde.cie as usize], &fde).filter(|_| !inside.is_empty()) {
                Some(levels) => fdes.extend(levels.cut(fde, inside).into_iter().map(|part| self.with_own_table(part))),
                None => fdes.push(fde),
            }
        }
        self.fdes = PrimaryMap::from_items(fdes);
        self
    }

    /// Gives a part of an entry what the exception table says of it.
    fn with_own_table(&mut self, mut part: FdeData) -> FdeData {
        if let Some(index) = part.lsda {
            let whole = &self.lsdas[index as usize];
            let first = whole.call_sites.partition_point(|site| site.end <= part.start);
            let inside = whole.call_sites[first..].iter().take_while(|site| site.start < part.end);
            let clip = |site: &CallSite| CallSite { start: site.start.max(part.start), end: site.end.min(part.end), ..*site };
            let own = Lsda {
                call_sites: inside.map(clip).collect(),
                actions: whole.actions.clone(),
                types: whole.types.clone(),
                specifications: whole.specifications.clone(),
                ..*whole
            };
            part.lsda = Some(self.lsdas.len() as u32);
            self.lsdas.push(own);
        }
        part
    }
}

/// Where each entry of `.eh_frame` begins, and the terminator. Ascending.
pub fn entry_starts(image: &Image<'_>) -> Vec<Va> {
    let Some(id) = image.section_named(".eh_frame") else { return Vec::new() };
    let (bytes, at) = (image.section_bytes(id), image.sections[id].sh_addr);
    let (mut starts, mut offset) = (Vec::new(), 0usize);
    while let Some(length) = bytes.get(offset..offset.saturating_add(4)) {
        starts.push(at + offset as u64);
        let length = length.try_into().map_or(0, u32::from_le_bytes);
        offset = offset.saturating_add(4).saturating_add(length as usize);
    }
    starts
}
