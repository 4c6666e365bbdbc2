//! One of the two programs: its parsed tables and its decoded code, and what both walks ask of them.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::decode::{Code, Decoder, Inst, Kind, Memo};
use crate::error::FileError;
use crate::functions::Functions;
use crate::image::Image;
use crate::unwind::{CallSite, CallSites, Located, Rows, Unwind};
use crate::walk::numbers::Starts;

/// By how much less than its address a function may be named.
const MARK_MAX: u64 = 8;
/// The longest instruction, in bytes.
const INSTRUCTION_MAX: u64 = 15;
/// In bytes.
const GAP_MIN: u64 = 64;
/// In bytes.
const PIECE_MAX: u64 = 1 << 16;

/// One of the two programs.
pub(crate) struct Side<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) code: Code<'a>,
    pub(crate) unwind: Unwind,
    pub(crate) decoder: Decoder,
    functions: OnceCell<Functions>,
    starts: Arc<Starts>,
    call_sites: RefCell<FxHashMap<u64, Option<Rc<CallSites>>>>,
    running_on: Vec<u64>,
    /// Whether the program may run with tracking of indirect branches.
    pub(crate) has_ibt: bool,
}

impl<'a> Side<'a> {
    pub(crate) fn new(image: Image<'a>, rows: &mut Rows, memo: &Arc<Memo>) -> Result<Self, FileError> {
        let code = Code::new(&image.code, memo.clone());
        let unwind = Unwind::parse(&image, rows)?;
        let described = unwind.fdes.iter().map(|fde| (fde.start, fde.end));
        let others = undescribed(&code, &unwind).into_iter().flat_map(pieces);
        code.predecode(&described.chain(others).collect::<Vec<_>>());
        let starts = Arc::new(Starts::of(code.size(), code.decoded()));
        let has_ibt = crate::structure::claims_ibt(&image);
        Ok(Self {
            has_ibt,
            image,
            code,
            unwind,
            decoder: Decoder::new()?,
            functions: OnceCell::new(),
            starts,
            call_sites: RefCell::default(),
            running_on: Vec::new(),
        })
    }

    /// Has frame descriptions end and others of the same rules begin at places inside of them, which ascend.
    pub(crate) fn cut_at(&mut self, places: &[u64]) {
        self.unwind.cut_at(places);
        self.functions = OnceCell::new();
    }

    /// Where linear decoding met instructions, and how many bytes of code there are.
    pub(super) fn starts(&self) -> (Arc<Starts>, usize) {
        (self.starts.clone(), self.code.size())
    }

    /// Code that no frame description covers, as starts and ends: all of it in programs that were built without any.
    pub(crate) fn undescribed(&self) -> Vec<(u64, u64)> {
        undescribed(&self.code, &self.unwind)
    }

    /// The function at an address, by frame description or by what calls lead to.
    pub(crate) fn function_at(&self, address: u64) -> Option<u32> {
        self.functions().at(&self.unwind, address)
    }

    /// Where a function begins and ends.
    pub(crate) fn function(&self, number: u32) -> (u64, u64) {
        self.functions().range(&self.unwind, number)
    }

    /// Whether a function without a frame description seems to begin at an address.
    pub(crate) fn starts_undescribed(&self, address: u64) -> bool {
        self.functions().starts_at(address)
    }

    /// How many functions there are; those with frame descriptions come first, and have their numbers.
    pub(crate) fn num_functions(&self) -> usize {
        self.unwind.fdes.len() + self.functions().len()
    }

    fn functions(&self) -> &Functions {
        self.functions.get_or_init(|| Functions::of(self))
    }

    pub(crate) fn inst(&self, address: u64) -> Option<Inst> {
        self.code.inst(&self.decoder, address)
    }

    /// Whether an instruction does nothing: a no-op, or an `endbr64` that nobody looks for.
    pub(crate) fn is_idle(&self, inst: Inst) -> bool {
        inst.kind == Kind::Nop || inst.kind == Kind::EndBranch && !self.has_ibt
    }

    pub(crate) fn begins_with_mark(&self, address: u64) -> bool {
        self.inst(address).is_some_and(|inst| inst.kind == Kind::EndBranch)
    }

    /// Whether an address lies inside an instruction of the filler between two frame descriptions, and nothing but filler is there. Labels and data stand between instructions, so this is a number from
    /// which something else is counted, as in `lea table-0x1000(%rip)`: what is there means nothing.
    pub(crate) fn is_inside_filler(&self, address: u64) -> bool {
        let fdes = &self.unwind.fdes;
        let next = fdes.partition_point(|fde| fde.start <= address);
        let before = next.checked_sub(1).and_then(|last| fdes.get(last));
        let (Some(mut at), Some(end)) = (before.map(|fde| fde.end), fdes.get(next).map(|fde| fde.start)) else { return false };
        let mut is_inside = false;
        while at < end {
            let Some(inst) = self.inst(at).filter(|inst| inst.kind == Kind::Nop) else { return false };
            let after = at + u64::from(inst.len);
            is_inside |= at < address && address < after;
            at = after;
        }
        is_inside && at == end
    }

    /// The function that begins a few bytes behind an address, with nothing but filler before it or the end of another, for what names its beginning less a number: a compiler folds a comparison with a range, or rounding up,
    /// into the address.
    pub(crate) fn function_behind(&self, address: u64) -> Option<u64> {
        let start = (address.saturating_add(1)..=address.saturating_add(MARK_MAX))
            .find(|&at| self.unwind.starts_at(at) || self.starts_undescribed(at))?;
        let may_begin = || address.saturating_sub(INSTRUCTION_MAX - 1)..=address;
        (self.unwind.fde_at(address).is_some() || may_begin().any(|at| self.is_filled(at, start))).then_some(start)
    }

    /// Whether an address lies inside of the instruction of filler right before a function.
    pub(crate) fn is_inside_last_filler(&self, address: u64) -> bool {
        let Some(start) = self.function_behind(address) else { return false };
        let is_last = |at: u64| self.filler(at).is_some_and(|after| after == start);
        (start.saturating_sub(INSTRUCTION_MAX)..address).any(is_last)
    }

    /// Whether instructions of filler lead from one address to another.
    fn is_filled(&self, mut at: u64, end: u64) -> bool {
        while at < end {
            let Some(after) = self.filler(at) else { return false };
            at = after;
        }
        at == end
    }

    /// What is behind an instruction of filler.
    fn filler(&self, at: u64) -> Option<u64> {
        self.inst(at).filter(|inst| matches!(inst.kind, Kind::Nop | Kind::Trap)).map(|inst| at + u64::from(inst.len))
    }

    /// Where a direct branch or call goes.
    pub(crate) fn target(&self, address: u64, inst: Inst) -> u64 {
        let bytes = self.code.bytes(address, inst);
        let wide = match bytes.iter().find(|&&byte| !matches!(byte, 0x2e | 0x3e | 0x66 | 0x67 | 0xf2 | 0x40..=0x4f)) {
            Some(0xe8 | 0xe9 | 0x0f | 0xc7) => 4,
            _ => 1,
        };
        address.wrapping_add(u64::from(inst.len)).wrapping_add(signed_tail(bytes, wide))
    }

    /// Where code without a frame description jumps to at once, as entries do that stand for functions.
    pub(crate) fn undescribed_jump(&self, address: u64) -> Option<u64> {
        let is_undescribed = self.code.index(address).is_some() && self.unwind.fde_at(address).is_none();
        let inst = self.inst(address).filter(|inst| is_undescribed && inst.kind == Kind::Jump)?;
        Some(self.target(address, inst))
    }

    /// Whether code begins by dropping or overwriting the return address of who calls it, as the inner part of a thunk for indirect branches does:
    /// what it returns to is not behind the call.
    pub(crate) fn drops_return_address(&self, address: u64) -> bool {
        let Some(inst) = self.inst(address) else { return false };
        match *self.code.bytes(address, inst) {
            // `mov` of a register to what the stack pointer points to.
            [0x48 | 0x4c, 0x89, operands, 0x24] => operands & 0xc7 == 0x04,
            [0x58..=0x5f] | [0x41, 0x58..=0x5f] => true,
            // `add`, or `lea`, that moves the stack pointer up.
            [0x48, 0x83, 0xc4, by] | [0x48, 0x8d, 0x64, 0x24, by] => (1..0x80).contains(&by),
            [0x48, 0x81, 0xc4, .., by] | [0x48, 0x8d, 0xa4, 0x24, .., by] => by < 0x80,
            _ => false,
        }
    }

    /// The absolute address of a rip-relative operand.
    pub(crate) fn operand(&self, address: u64, inst: Inst) -> u64 {
        let bytes = self.code.bytes(address, inst);
        let field = &bytes[..(usize::from(inst.disp) + 4).min(bytes.len())];
        address.wrapping_add(u64::from(inst.len)).wrapping_add(signed_tail(field, 4))
    }

    /// Where the unwind tables, the interpreter's name, the notes and the loader's tables of symbols are, as starts and ends: without section headers, what of an
    /// executable segment is no code.
    pub(crate) fn metadata(&self) -> Vec<(u64, u64)> {
        use goblin::elf::dynamic::{DT_GNU_HASH, DT_HASH, DT_SYMTAB};
        use goblin::elf::program_header::{PT_GNU_EH_FRAME, PT_INTERP, PT_NOTE};
        let is_metadata = |p_type: u32| [PT_GNU_EH_FRAME, PT_INTERP, PT_NOTE].contains(&p_type);
        let headers = self.image.elf.program_headers.iter().filter(|header| is_metadata(header.p_type));
        let mut places: Vec<(u64, u64)> = headers.map(|header| (header.p_vaddr, header.p_filesz)).collect();
        places.extend(self.unwind.table.map(|(start, end)| (start, end - start)));
        for (fde, index) in self.unwind.fdes.iter().zip(0..) {
            places.extend(fde.lsda.zip(self.call_sites(index)).map(|(at, sites)| (at, sites.len)));
        }
        let tables = [DT_SYMTAB, DT_HASH, DT_GNU_HASH].into_iter().filter_map(|tag| self.image.loader_table(tag));
        places.extend(tables.map(|(at, bytes)| (at, bytes.len() as u64)));
        joined(places)
    }

    /// Has code run on behind frame descriptions that end with a call; these ends ascend.
    pub(crate) fn note_running_on(&mut self, ends: Vec<u64>) {
        self.running_on = ends;
    }

    /// Whether code runs on behind a frame description that ends at an address, though it may end with a call.
    pub(crate) fn runs_on_at(&self, address: u64) -> bool {
        self.running_on.binary_search(&address).is_ok()
    }

    /// Whether an entry has an exception table by which nothing is done at an address, as if it had none. Functions with and without tables may share an entry.
    pub(crate) fn passes_by_table(&self, fde: u32, address: u64) -> bool {
        let has_table = self.unwind.fdes.get(fde as usize).is_some_and(|fde| fde.lsda.is_some());
        has_table && self.call_sites(fde).is_some_and(|sites| sites.find(address).is_some_and(CallSite::is_passing))
    }

    /// Whether nothing is done at an address with an exception, or none can come from there, whatever the table says.
    fn handles_nothing_at(&self, fde: u32, address: u64) -> bool {
        self.passes_by_table(fde, address) || !self.can_raise_at(address)
    }

    /// What a frame description says of an address apart from rules.
    pub(crate) fn frame_at(&self, located: &Located, address: u64) -> u32 {
        match self.unwind.fdes.get(located.fde as usize) {
            Some(fde) if self.handles_nothing_at(located.fde, address) => fde.bare_frame,
            _ => located.frame,
        }
    }

    /// The same, if nothing is done with exceptions.
    pub(crate) fn bare_frame(&self, located: &Located) -> u32 {
        self.unwind.fdes.get(located.fde as usize).map_or(located.frame, |fde| fde.bare_frame)
    }

    /// Whether to unwind from an address is but to return: nothing is saved, pushed or handled there.
    pub(crate) fn is_as_at_entry(&self, address: u64) -> bool {
        let index = self.unwind.locate(address).fde;
        let fde = self.unwind.fdes.get(index as usize);
        self.unwind.has_no_frame(address) && fde.is_some_and(|fde| fde.lsda.is_none() || self.handles_nothing_at(index, address))
    }

    /// Whether a function begins at an address, by its frame description: a part of one finds a frame there.
    pub(crate) fn begins_function(&self, address: u64) -> bool {
        self.unwind.starts_at(address) && self.is_as_at_entry(address)
    }

    pub(crate) fn call_sites(&self, fde: u32) -> Option<Rc<CallSites>> {
        let fde = &self.unwind.fdes[fde as usize];
        let address = fde.lsda?;
        let mut known = self.call_sites.borrow_mut();
        known.entry(fde.base).or_insert_with(|| CallSites::parse(&self.image, address, fde.base).map(Rc::new)).clone()
    }
}

fn undescribed(code: &Code<'_>, unwind: &Unwind) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut fdes = unwind.fdes.iter().peekable();
    for area in code.areas() {
        let mut start = area.start;
        while let Some(fde) = fdes.next_if(|fde| fde.start < area.end()) {
            if start < fde.start {
                gaps.push((start, fde.start));
            }
            start = start.max(fde.end);
        }
        if start < area.end() {
            gaps.push((start, area.end()));
        }
    }
    gaps
}

/// What of a gap between frame descriptions is worth to be decoded at once, in parts for several threads: nothing of padding. Decoding that begins within an instruction soon meets those
/// that execution does.
fn pieces((start, end): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let is_more_than_padding = end - start >= GAP_MIN;
    let starts = (start..end).step_by(PIECE_MAX as usize).take_while(move |_| is_more_than_padding);
    starts.map(move |start| (start, end.min(start + PIECE_MAX)))
}

/// Places and sizes as starts and ends, ascending, overlapping ones joined.
pub(crate) fn joined(mut places: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    places.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, size) in places {
        let end = start.saturating_add(size);
        match ranges.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => ranges.push((start, end)),
        }
    }
    ranges
}

/// The signed little-endian value of the last `size` bytes.
fn signed_tail(bytes: &[u8], size: usize) -> u64 {
    let field = &bytes[bytes.len().saturating_sub(size)..];
    match *field {
        [a] => i64::from(a.cast_signed()).cast_unsigned(),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])).cast_unsigned(),
        _ => 0,
    }
}
