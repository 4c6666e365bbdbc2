//! Code without frame descriptions, cut where functions seem to begin.
//!
//! **Problem.** Jump tables are told from other data by their leading into the function that names them. In code that was built without frame descriptions, nothing says where a
//! function begins and ends.
//!
//! **Method.** A function begins where a call leads, where the loader enters or the file has a pointer to, and where an instruction makes an address, and it reaches to where the next one begins. All
//! is decoded straight on from these places, so that what only a table leads to is met as well, and calls something in turn. A place that is called by nobody is part of the
//! function before it: too little is cut, never too much, as far as that is what calls lead to.
//!
//! **What depends on it**: which data is a jump table, and how far it reaches. What its entries lead to is compared as any other pair. So a wrong cut makes a table
//! of what is none, whose words then have to be distances to instructions that correspond; or none of what is one, which then may not change.
//!
//! **Terminates**: each place is decoded from once, and decoding goes up to what was decoded before.

use crate::decode::{Inst, Kind, Shape};
use crate::image::Slot;
use crate::unwind::Unwind;
use crate::walk::{Bits, Side};

/// Starts and ends of functions without frame descriptions, ascending.
#[derive(Default)]
pub(crate) struct Functions {
    undescribed: Vec<(u64, u64)>,
}

impl Functions {
    /// Looks through all that has no frame description.
    pub(crate) fn of(side: &Side<'_>) -> Self {
        let gaps = side.undescribed();
        if gaps.is_empty() {
            return Self::default();
        }
        let has_numbers = crate::data::has_numbers(&side.image);
        let bits = || Bits::new(side.code.size());
        let mut in_gaps = bits();
        for &(start, end) in &gaps {
            let Some(first) = side.code.index(start) else { continue };
            for index in first..first + (end - start) as usize {
                in_gaps.insert(index);
            }
        }
        let first = gaps.iter().map(|&(start, end)| behind_padding(side, start, end)).collect();
        let mut search =
            Search { side, gaps: &gaps, in_gaps, first, met: bits(), inside: bits(), starts: Vec::new(), has_numbers };
        search.run();
        search.starts.sort_unstable();
        search.starts.dedup();
        let mut undescribed = Vec::with_capacity(search.starts.len());
        for (position, &start) in search.starts.iter().enumerate() {
            let Some(&(_, gap_end)) = gap_at(&gaps, start) else { continue };
            let limit = search.starts.get(position + 1).map_or(gap_end, |&next| next.min(gap_end));
            let end = last_end(side, start, limit);
            if start < end {
                undescribed.push((start, end));
            }
        }
        Self { undescribed }
    }

    pub(crate) fn len(&self) -> usize {
        self.undescribed.len()
    }

    /// The function at an address: the number of its frame description, or one above all of these.
    pub(crate) fn at(&self, unwind: &Unwind, address: u64) -> Option<u32> {
        unwind.fde_at(address).or_else(|| {
            let last = self.undescribed.partition_point(|&(start, _)| start <= address).checked_sub(1)?;
            (address < self.undescribed[last].1).then(|| (unwind.fdes.len() + last) as u32)
        })
    }

    /// Whether a function without a frame description begins at an address.
    pub(crate) fn starts_at(&self, address: u64) -> bool {
        self.undescribed.binary_search_by_key(&address, |&(start, _)| start).is_ok()
    }

    /// Where a function begins and ends.
    pub(crate) fn range(&self, unwind: &Unwind, number: u32) -> (u64, u64) {
        let number = number as usize;
        match unwind.fdes.get(number) {
            Some(fde) => (fde.start, fde.end),
            None => self.undescribed.get(number - unwind.fdes.len()).copied().unwrap_or_default(),
        }
    }
}

fn gap_at(gaps: &[(u64, u64)], address: u64) -> Option<&(u64, u64)> {
    let last = gaps.partition_point(|&(start, _)| start <= address).checked_sub(1)?;
    gaps.get(last).filter(|gap| address < gap.1)
}

/// Where the last instruction ends that is no padding.
fn last_end(side: &Side<'_>, start: u64, limit: u64) -> u64 {
    let (mut address, mut end) = (start, start);
    while let Some(inst) = side.inst(address).filter(|_| address < limit) {
        address += u64::from(inst.len);
        let is_padding = inst.kind == Kind::Nop || side.code.bytes(address - u64::from(inst.len), inst) == [0xcc];
        if !is_padding {
            end = address.min(limit);
        }
    }
    end
}

/// The first byte of a gap that is neither zero nor of an instruction that fills.
fn behind_padding(side: &Side<'_>, mut address: u64, end: u64) -> u64 {
    while address < end {
        let filler = side.image.at(address, 1).is_some_and(|byte| [0, 0xcc].contains(&byte[0]));
        match side.inst(address) {
            _ if filler => address += 1,
            Some(inst) if inst.kind == Kind::Nop => address += u64::from(inst.len),
            _ => break,
        }
    }
    address
}

/// Where functions may begin.
#[derive(Default)]
struct Found {
    called: Vec<u64>,
    /// Addresses that the file marks or an instruction makes.
    named: Vec<u64>,
    /// Where gaps begin.
    first: Vec<u64>,
    /// Numbers that may be addresses.
    numbers: Vec<u64>,
}

/// The last one that is wanted, without those behind it.
fn pop_if(list: &mut Vec<u64>, is_wanted: impl Fn(u64) -> bool) -> Option<u64> {
    std::iter::from_fn(|| list.pop()).find(|&start| is_wanted(start))
}

struct Search<'s, 'a> {
    side: &'s Side<'a>,
    gaps: &'s [(u64, u64)],
    /// By code index, their bytes.
    in_gaps: Bits,
    /// By gap, where something else than padding begins.
    first: Vec<u64>,
    /// By code index, instructions of gaps that were met.
    met: Bits,
    /// The bytes behind the first of each, and those that run into a gap from before.
    inside: Bits,
    starts: Vec<u64>,
    /// Whether any number may be an address.
    has_numbers: bool,
}

impl Search<'_, '_> {
    fn run(&mut self) {
        let side = self.side;
        let mut found = Found { called: vec![side.image.elf.entry], ..Found::default() };
        for &(_, slot) in &side.image.slots {
            if let Slot::Relative(address) | Slot::Resolver(address) = slot {
                found.named.push(address);
            }
        }
        let symbols = side.image.elf.dynsyms.iter().filter(|symbol| crate::data::names_code(&side.image, symbol));
        found.named.extend(symbols.map(|symbol| symbol.st_value));
        let tags = [goblin::elf::dynamic::DT_INIT, goblin::elf::dynamic::DT_FINI];
        found.called.extend(tags.iter().filter_map(|&tag| side.image.dynamic_value(tag)));
        if self.has_numbers {
            found.numbers.extend(crate::data::words(&side.image).map(|(_, value)| value));
        }
        // Parts to which only jumps lead may lie before the first function.
        found.first = self.first.iter().rev().copied().collect();
        for fde in &side.unwind.fdes {
            self.look_through(fde.start, fde.end, &mut found);
        }
        loop {
            let likely = found.called.pop().or_else(|| pop_if(&mut found.named, |start| self.may_begin(start)));
            // Numbers last: most are no addresses, and lead into the middle of what is known by then.
            let start =
                likely.or_else(|| found.first.pop()).or_else(|| pop_if(&mut found.numbers, |start| self.may_begin(start)));
            let Some(start) = start else { return };
            let Some(&(_, end)) = gap_at(self.gaps, start) else { continue };
            self.starts.push(start);
            self.decode(start, end, &mut found);
        }
    }

    /// Whether what something may name may begin a function: not within an instruction that was met, nor where bytes only fill.
    fn may_begin(&self, start: u64) -> bool {
        let is_inside = self.side.code.index(start).is_some_and(|index| self.inside.contains(index));
        let is_before = self.gaps.partition_point(|gap| gap.0 <= start).checked_sub(1).is_some_and(|gap| start < self.first[gap]);
        let is_filler = |inst: Inst| inst.kind == Kind::Nop || matches!(self.side.code.bytes(start, inst), [0xcc] | [0, 0]);
        !is_inside && !is_before && self.side.inst(start).is_some_and(|inst| !is_filler(inst))
    }

    /// Takes note of what a frame description calls, jumps to and names that has none.
    fn look_through(&mut self, start: u64, end: u64, found: &mut Found) {
        let side = self.side;
        let mut address = start;
        while let Some(inst) = side.inst(address).filter(|_| address < end) {
            if matches!(inst.kind, Kind::Jump | Kind::Branch) {
                // From code with a frame description into code without: a tail call.
                found.called.extend(Some(side.target(address, inst)).filter(|&target| self.in_gap(target)));
            }
            self.note(address, inst, found);
            address += u64::from(inst.len);
        }
        for index in (end..address).filter_map(|at| side.code.index(at)) {
            self.inside.insert(index);
        }
    }

    /// Decodes what lies in a gap up to what was met before, and takes note of what is called and whose address is made.
    fn decode(&mut self, start: u64, end: u64, found: &mut Found) {
        let side = self.side;
        let mut address = start;
        while let (Some(index), Some(inst)) = (side.code.index(address), side.inst(address).filter(|_| address < end)) {
            if !self.met.insert(index) {
                return;
            }
            for at in 1..usize::from(inst.len) {
                self.inside.insert(index + at);
            }
            self.note(address, inst, found);
            address += u64::from(inst.len);
        }
    }

    fn note(&self, address: u64, inst: Inst, found: &mut Found) {
        let side = self.side;
        match inst.kind {
            Kind::Call => found.called.extend(Some(side.target(address, inst)).filter(|&target| self.in_gap(target))),
            Kind::Lea if inst.disp != 0 => {
                found.named.extend(Some(side.operand(address, inst)).filter(|&place| self.in_gap(place)));
            }
            _ => {}
        }
        if self.has_numbers {
            let bytes = side.code.bytes(address, inst);
            found.numbers.extend(Shape::of(bytes).wide_immediate(bytes).filter(|&number| self.in_gap(number)));
        }
    }

    fn in_gap(&self, address: u64) -> bool {
        self.side.code.index(address).is_some_and(|index| self.in_gaps.contains(index))
    }
}
