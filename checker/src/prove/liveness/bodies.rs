//! Which frame descriptions are parts of one function of the input, who enters it by a tail call, and where its indirect jumps lead.
//!
//! **Method.** One pass over the code. A jump to the start of a frame description at which nothing is saved, from where the return address is on top of the stack, is a *tail call*: a
//! return from the target may lead behind a call of the source, but not the other way round. All other ways from one frame description to another make them one body: other
//! jumps, entries of jump tables, running on. Where data point into a frame description, or to its start where something is saved, that is a label of a computed jump. Bodies that have
//! labels and no indirect jump are parts of others, nobody knows which; so then all that have labels are one.
//!
//! What is joined or entered is never too little. A tail call may be a jump inside a function, but then the way back joins its parts.

use goblin::elf::dynamic::{DT_FINI, DT_INIT};
use rustc_hash::FxHashSet;

use super::labels::Labels;
use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::tables::TableReference;
use crate::walk::{AT_RETURN_ADDRESS, Walk};

/// A function of the input.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    /// Others that enter it by tail calls.
    pub(super) entered_from: Vec<u32>,
    /// What is behind direct calls of it.
    pub(super) behind_calls: Vec<u64>,
    /// Where its indirect jumps may lead, tail calls aside.
    pub(super) targets: Vec<u64>,
    /// Whether code that no frame description covers jumps to it, or it computes with an address of its own code: nothing is known of its returns and indirect jumps.
    pub(super) is_unclear: bool,
    /// Something but calls and jumps of this file may enter it.
    pub(super) is_named: bool,
    /// Numbers may lead into it, but to an entry.
    pub(super) has_numbered: bool,
    has_indirect_jump: bool,
    has_labels: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Bodies {
    /// By frame description.
    body_of: Vec<u32>,
    bodies: Vec<Body>,
    /// Where direct jumps lead, ascending.
    jumped_to: Vec<u64>,
    /// Where numbers may lead: in a file at a fixed address without relocations, if that is known.
    labels: Option<Labels>,
}

impl Bodies {
    pub(super) fn find(walk: &Walk<'_, '_>) -> Self {
        let mut finder = Finder::new(walk);
        crate::leftover::each_instruction(walk.input, |address, inst| finder.visit(address, inst));
        finder.link();
        finder.labels();
        finder.names();
        let labels = if walk.keeps_old_text() { Labels::find(walk) } else { None };
        finder.finish(labels)
    }

    /// The body around an address, by number.
    pub(super) fn at(&self, walk: &Walk<'_, '_>, address: u64) -> Option<u32> {
        self.body_of.get(walk.input.unwind.fde_at(address)? as usize).copied()
    }

    /// Whether a direct jump leads to an address, or a number may.
    pub(super) fn is_jumped_to(&self, address: u64) -> bool {
        self.jumped_to.binary_search(&address).is_ok() || self.labels.as_ref().is_some_and(|labels| labels.has(address))
    }

    /// Whether nothing is known of words that may be addresses.
    pub(super) fn is_without_knowledge(&self, walk: &Walk<'_, '_>) -> bool {
        walk.keeps_old_text() && self.labels.is_none()
    }

    /// The frame descriptions of a body.
    pub(super) fn members(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.body_of).filter(move |&(_, &body)| body == number).map(|(fde, _)| fde)
    }

    pub(super) fn body(&self, number: u32) -> Option<&Body> {
        self.bodies.get(number as usize)
    }
}

/// Whether the return address is on top of the stack.
pub(super) fn is_at_return_address(walk: &Walk<'_, '_>, address: u64) -> bool {
    walk.frame_address(walk.input, address) == Some(AT_RETURN_ADDRESS)
}

struct Finder<'f, 'w, 'a> {
    walk: &'f Walk<'w, 'a>,
    /// By frame description: one of its body that stands for more of it, at last for all.
    parents: Vec<u32>,
    /// By frame description, what was found at it.
    found: Vec<Body>,
    jumped_to: Vec<u64>,
    /// The frame description of the last instruction, and where it is the same.
    here: (u32, std::ops::Range<u64>),
    /// In a file at a fixed address, what words of data name by the linker's relocations.
    linked: Vec<u64>,
}

impl<'f, 'w, 'a> Finder<'f, 'w, 'a> {
    fn new(walk: &'f Walk<'w, 'a>) -> Self {
        let count = walk.input.unwind.fdes.len();
        Self {
            walk,
            parents: (0..count as u32).collect(),
            found: vec![Body::default(); count],
            jumped_to: Vec::new(),
            here: (0, 0..0),
            linked: Vec::new(),
        }
    }

    fn visit(&mut self, at: u64, inst: Inst) {
        let side = self.walk.input;
        if !self.here.1.contains(&at) {
            self.here = side.unwind.span_at(at).unwrap_or_default();
        }
        let from = self.here.1.contains(&at).then_some(self.here.0);
        let after = at + u64::from(inst.len);
        match inst.kind {
            Kind::Call => {
                let callee = side.unwind.fde_at(side.target(at, inst));
                if let Some(callee) = callee.filter(|_| !self.walk.call_never_returns(at, inst)) {
                    self.found[callee as usize].behind_calls.push(after);
                }
            }
            Kind::Jump | Kind::Branch | Kind::Loop => self.jump(from, at, side.target(at, inst)),
            Kind::IndirectJump => {
                if let Some(from) = from {
                    self.found[from as usize].has_indirect_jump = true;
                }
                self.table_of_addresses(from, at, inst);
            }
            Kind::Plain => self.table_of_addresses(from, at, inst),
            Kind::Lea if inst.disp != 0 => self.named(from, at, side.operand(at, inst)),
            _ => {}
        }
        let runs_on = !matches!(inst.kind, Kind::Jump | Kind::IndirectJump | Kind::Return | Kind::Stop | Kind::Trap | Kind::Nop);
        // Behind a call that ends a frame description there is nothing to return to.
        if runs_on && !self.here.1.contains(&after) && !matches!(inst.kind, Kind::Call | Kind::IndirectCall) {
            self.runs_on(from, after);
        }
    }

    fn jump(&mut self, from: Option<u32>, at: u64, target: u64) {
        self.jumped_to.push(target);
        // A stub leads to code of another file, or of nobody knows which function.
        if self.walk.input.slot_of_stub(target).is_some() {
            return;
        }
        let unwind = &self.walk.input.unwind;
        match (from, unwind.fde_at(target)) {
            (Some(from), Some(to)) if from != to => {
                let is_entry = unwind.fdes[to as usize].start == target && is_at_return_address(self.walk, target);
                if is_entry && is_at_return_address(self.walk, at) {
                    self.found[to as usize].entered_from.push(from);
                } else {
                    self.join(from, to);
                }
            }
            (None, Some(to)) => self.found[to as usize].is_unclear = true,
            _ => {}
        }
    }

    /// An instruction of a file at a fixed address names a jump table.
    fn table_of_addresses(&mut self, from: Option<u32>, at: u64, inst: Inst) {
        let table = self.walk.absolute_table(self.walk.input.code.bytes(at, inst));
        if let (Some(from), Some(table)) = (from, table) {
            self.table(from, TableReference { input: table, output: table, width: 8, from: at, origin: at });
        }
    }

    fn table(&mut self, from: u32, table: TableReference) {
        for target in crate::tables::targets(self.walk, table).into_iter().flatten() {
            self.found[from as usize].targets.push(target);
            if let Some(to) = self.walk.input.unwind.fde_at(target) {
                self.join(from, to);
            }
        }
    }

    /// What an instruction names: a jump table, data, or code.
    fn named(&mut self, from: Option<u32>, at: u64, place: u64) {
        if let Some(from) = from {
            self.table(from, TableReference { input: place, output: place, width: 4, from: at, origin: at });
        }
        self.named_code(from, place);
    }

    fn named_code(&mut self, from: Option<u32>, place: u64) {
        let into = self.walk.input.unwind.fde_at(place);
        if let Some(into) = into {
            self.found[into as usize].is_named = true;
        }
        let Some(from) = from else { return };
        if let Some(into) = into.filter(|&into| self.walk.input.unwind.fdes[into as usize].start != place) {
            self.join(from, into);
            self.found[from as usize].is_unclear = true;
        }
    }

    fn runs_on(&mut self, from: Option<u32>, after: u64) {
        match (from, self.walk.input.unwind.fde_at(after)) {
            (Some(from), Some(to)) if from != to => self.join(from, to),
            (None, Some(to)) => self.found[to as usize].is_unclear = true,
            _ => {}
        }
    }

    /// What absolute addresses name that the linker put into a file at a fixed address.
    fn link(&mut self) {
        let image = &self.walk.input.image;
        if !image.is_position_dependent() {
            return;
        }
        for (place, address) in crate::data::linked_addresses(image) {
            match image.in_code(place) {
                true => self.named_code(self.walk.input.unwind.fde_at(place), address),
                false => self.linked.push(address),
            }
        }
    }

    /// What data point to inside of functions.
    fn labels(&mut self) {
        let slots = self.walk.input.image.slots.iter().filter_map(|&(_, slot)| match slot {
            Slot::Relative(place) => Some(place),
            _ => None,
        });
        for place in slots.chain(self.linked.clone()) {
            let Some(fde) = self.walk.input.unwind.fde_at(place) else { continue };
            let is_entry = self.walk.input.unwind.fdes[fde as usize].start == place && is_at_return_address(self.walk, place);
            if !is_entry {
                self.found[fde as usize].targets.push(place);
                self.found[fde as usize].has_labels = true;
            }
        }
        let count = self.found.len() as u32;
        let labelled: Vec<u32> = (0..count).filter(|&fde| self.found[fde as usize].has_labels).collect();
        let mut jumps = vec![false; self.found.len()];
        for fde in 0..count {
            let body = self.body_of(fde);
            jumps[body as usize] |= self.found[fde as usize].has_indirect_jump;
        }
        let is_stray = labelled.iter().any(|&fde| !jumps[self.body_of(fde) as usize]);
        for pair in labelled.windows(2).filter(|_| is_stray) {
            self.join(pair[0], pair[1]);
        }
    }

    /// What the loader and words of data name. At a fixed address any number may, if the linker did not leave word of those that do.
    fn names(&mut self) {
        let (walk, image) = (self.walk, &self.walk.input.image);
        if walk.keeps_old_text() {
            self.found.iter_mut().for_each(|found| found.is_named = true);
            return;
        }
        let mut places: Vec<u64> = vec![image.elf.entry];
        places.extend(image.elf.dynsyms.iter().filter(|symbol| symbol.st_shndx != 0).map(|symbol| symbol.st_value));
        places.extend(image.slots.iter().filter_map(|&(_, slot)| match slot {
            Slot::Relative(place) | Slot::Resolver(place) => Some(place),
            Slot::Symbol { symbol, addend, .. } => {
                let symbol = image.elf.dynsyms.get(symbol).filter(|symbol| symbol.st_shndx != 0)?;
                Some(symbol.st_value.wrapping_add_signed(addend))
            }
        }));
        places.extend(&self.linked);
        let dynamic = image.elf.dynamic.iter().flat_map(|dynamic| &dynamic.dyns);
        places.extend(dynamic.filter(|entry| matches!(entry.d_tag, DT_INIT | DT_FINI)).map(|entry| entry.d_val));
        let starts: FxHashSet<u64> = walk.input.unwind.fdes.iter().map(|fde| fde.start).collect();
        let mut by_offsets = FxHashSet::default();
        crate::leftover::by_offsets(walk, &starts, &mut by_offsets);
        for fde in places.into_iter().chain(by_offsets).filter_map(|place| walk.input.unwind.fde_at(place)) {
            self.found[fde as usize].is_named = true;
        }
    }

    fn body_of(&mut self, mut fde: u32) -> u32 {
        while self.parents[fde as usize] != fde {
            let above = self.parents[self.parents[fde as usize] as usize];
            self.parents[fde as usize] = above;
            fde = above;
        }
        fde
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.body_of(a), self.body_of(b));
        self.parents[a.max(b) as usize] = a.min(b);
    }

    fn finish(mut self, labels: Option<Labels>) -> Bodies {
        let count = self.found.len() as u32;
        let body_of: Vec<u32> = (0..count).map(|fde| self.body_of(fde)).collect();
        let mut bodies = vec![Body::default(); self.found.len()];
        for (found, &number) in self.found.into_iter().zip(&body_of) {
            let body = &mut bodies[number as usize];
            body.entered_from.extend(found.entered_from.into_iter().map(|fde| body_of[fde as usize]));
            body.behind_calls.extend(found.behind_calls);
            body.targets.extend(found.targets);
            body.is_unclear |= found.is_unclear;
            body.is_named |= found.is_named;
        }
        let fdes = &self.walk.input.unwind.fdes;
        if let Some(labels) = &labels {
            for (fde, &number) in fdes.iter().zip(&body_of) {
                bodies[number as usize].has_numbered |= labels.has_in(fde.start, fde.end);
            }
        }
        for body in &mut bodies {
            for list in [&mut body.targets, &mut body.behind_calls] {
                list.sort_unstable();
                list.dedup();
            }
            body.entered_from.sort_unstable();
            body.entered_from.dedup();
        }
        self.jumped_to.sort_unstable();
        self.jumped_to.dedup();
        Bodies { body_of, bodies, jumped_to: self.jumped_to, labels }
    }
}
