//! Which functions of the input never return: after a call to one, whatever follows in the file is not a successor.
//!
//! **Method.** A function may return if a `ret`, an indirect jump, or a jump to a function that may return can be reached from its
//! entry, where what follows a call is reached only if the callee may return. This is the least fixpoint, found with one worklist. What is a function
//! is told by frame descriptions, and where there are none, by the calls that a linear sweep finds: one that is found by mistake is judged for nothing.
//! A call of what drops or overwrites its return address counts as a return: control goes on where that is put, as in thunks for indirect branches.
//! Imported functions are judged by name. A call through a word that always holds the same address of the program ([`address_in`]) is a call of what is there: where linkers were told to leave such calls as they are, all code of Rust calls so.
//!
//! **Soundness.** What follows a call that does not come back is only tried, and then compared by content, and no register is asked for behind it. So a function that is taken
//! for one that never returns hides wrong code; one that is taken for one that may return costs at worst a false alarm. The only guess is that
//! the compiler ends a frame description behind a call only if *this* call does not come back, but for where code shows that it runs on ([`crate::tables::running_on`]). It says nothing of other calls of the same
//! function, imported or not: `error` returns or not by its first argument, and a compiler that knows the rest of a function for undefined behavior ends it behind a call of
//! `std::string::insert`.
//!
//! **Terminates**: each instruction is visited once, by the function that comes first; others that meet it depend on that function.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::{Inst, Kind, UD2};
use crate::image::Slot;
use crate::prove::address_in;
use crate::walk::{CALL_THROUGH, Side};

/// Functions of the C, C++ and Rust run-time libraries that never return.
const NAMES: &[&str] = &[
    "abort",
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "__assert_fail",
    "__assert_perror_fail",
    "__assert",
    "__assert_rtn",
    "__stack_chk_fail",
    "__chk_fail",
    "__fortify_fail",
    "__libc_fatal",
    "__libc_start_main",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "err",
    "errx",
    "verr",
    "verrx",
    "pthread_exit",
    "thrd_exit",
    "_Unwind_Resume",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_bad_typeid",
    "__cxa_throw_bad_array_new_length",
    "__cxa_call_unexpected",
    "__cxa_call_terminate",
    "__cxa_pure_virtual",
    "_ZSt9terminatev",
    "_ZSt10unexpectedv",
];

#[derive(Default)]
pub(crate) struct NoReturn {
    functions: FxHashSet<u64>,
    /// Cells of the global offset table that hold such a function.
    cells: FxHashSet<u64>,
}

fn is_noreturn_name(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    NAMES.contains(&name) || (name.starts_with("_ZSt") && name.contains("__throw_"))
}

impl NoReturn {
    pub(crate) fn compute(side: &Side<'_>) -> Self {
        let mut found = Self::default();
        for &(place, slot) in &side.image.slots {
            if let Slot::Symbol { symbol, .. } = slot
                && is_noreturn_name(side.image.dynamic_symbol_name(symbol))
            {
                found.cells.insert(place);
            }
        }
        let mut search = Search::new(side, &found.cells);
        // Each place is looked at once: damaged descriptions may all cover everything, and places without code.
        let mut reached = 0;
        for fde in &side.unwind.fdes {
            search.function(fde.start);
            reached = search.callees(fde.start.max(reached), fde.end);
        }
        for (start, end) in side.undescribed() {
            search.callees(start, end);
        }
        search.run();
        let functions: FxHashSet<u64> = search
            .starts
            .iter()
            .enumerate()
            .filter(|&(function, _)| !search.returns[function])
            .map(|(_, &start)| start)
            .collect();
        found.functions = functions;
        found
    }

    /// Whether control does not come back from the call at `address`, as far as the compiler knew: it puts a trap where it says so.
    pub(crate) fn ends_at(&self, side: &Side<'_>, address: u64, inst: Inst) -> bool {
        let after = address + u64::from(inst.len);
        self.stops(side, address, inst) || side.inst(after).is_some_and(|next| side.code.bytes(after, next) == UD2)
    }

    /// The same, by the callee or the end of the frame description alone.
    pub(crate) fn stops(&self, side: &Side<'_>, address: u64, inst: Inst) -> bool {
        let after = address + u64::from(inst.len);
        // Where a section ends with a call, there is nothing to come back to.
        is_end(side, address, after)
            || side.code.index(after).is_none()
            || inst.kind == Kind::IndirectCall && inst.disp != 0 && self.cells.contains(&side.operand(address, inst))
            || callee(side, address, inst).is_some_and(|callee| self.functions.contains(&callee))
    }
}

/// The function of the program that a call always enters.
fn callee(side: &Side<'_>, address: u64, inst: Inst) -> Option<u64> {
    match inst.kind {
        Kind::Call => Some(side.target(address, inst)),
        Kind::IndirectCall if inst.disp != 0 && side.code.bytes(address, inst).starts_with(&CALL_THROUGH) => {
            address_in(&side.image, side.operand(address, inst))
        }
        _ => None,
    }
}

/// Whether the frame description of what is at `address` ends at `after`: what follows is other code, and the compiler knew that a call before it comes to nothing.
fn is_end(side: &Side<'_>, address: u64, after: u64) -> bool {
    let ends = side.unwind.fde_at(address).is_some_and(|fde| side.unwind.fdes[fde as usize].end <= after);
    ends && !side.runs_on_at(after)
}

struct Search<'s, 'a> {
    side: &'s Side<'a>,
    cells: &'s FxHashSet<u64>,
    /// By code index, the function that visited it plus one.
    owner: Vec<u32>,
    ids: FxHashMap<u64, u32>,
    starts: Vec<u64>,
    returns: Vec<bool>,
    /// Functions that return if this one does.
    tails: Vec<Vec<u32>>,
    /// Where callers go on if this one returns.
    continuations: Vec<Vec<(u32, u64)>>,
    work: Vec<(u32, u64)>,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(side: &'s Side<'a>, cells: &'s FxHashSet<u64>) -> Self {
        Self {
            side,
            cells,
            owner: vec![0; side.code.size()],
            ids: FxHashMap::default(),
            starts: Vec::new(),
            returns: Vec::new(),
            tails: Vec::new(),
            continuations: Vec::new(),
            work: Vec::new(),
        }
    }

    fn function(&mut self, start: u64) -> u32 {
        if let Some(&id) = self.ids.get(&start) {
            return id;
        }
        let id = self.starts.len() as u32;
        self.ids.insert(start, id);
        self.starts.push(start);
        // An address outside the code is not ours to judge.
        self.returns.push(self.side.code.index(start).is_none());
        self.tails.push(Vec::new());
        self.continuations.push(Vec::new());
        self.work.push((id, start));
        id
    }

    /// What is called from code that only a jump table or an unwinder reaches has to be judged too. What is no instruction is passed over: what is judged
    /// without need does no harm. Returns how far it has looked.
    fn callees(&mut self, start: u64, end: u64) -> u64 {
        let mut reached = start;
        for area in self.side.code.areas() {
            let mut address = start.max(area.start);
            while address < end.min(area.end()) {
                let inst = self.side.inst(address);
                if let Some(callee) = inst.and_then(|inst| callee(self.side, address, inst)) {
                    self.function(callee);
                }
                address += inst.map_or(1, |inst| u64::from(inst.len));
                reached = reached.max(address);
            }
        }
        reached
    }

    fn run(&mut self) {
        while let Some((function, address)) = self.work.pop() {
            self.visit(function, address);
        }
    }

    fn returned(&mut self, function: u32) {
        let mut pending = vec![function];
        while let Some(function) = pending.pop() {
            if std::mem::replace(&mut self.returns[function as usize], true) {
                continue;
            }
            pending.append(&mut self.tails[function as usize]);
            self.work.append(&mut self.continuations[function as usize]);
        }
    }

    /// `function` returns if `other` does.
    fn depend(&mut self, function: u32, other: u32) {
        if self.returns[other as usize] {
            self.returned(function);
        } else if function != other {
            self.tails[other as usize].push(function);
        }
    }

    fn visit(&mut self, function: u32, start: u64) {
        let mut address = start;
        loop {
            let (Some(index), Some(inst)) = (self.side.code.index(address), self.side.inst(address)) else {
                return self.returned(function);
            };
            match self.owner[index] {
                0 => self.owner[index] = function + 1,
                owner if owner == function + 1 => return,
                owner => return self.depend(function, owner - 1),
            }
            let after = address + u64::from(inst.len);
            match inst.kind {
                Kind::Return => return self.returned(function),
                Kind::Stop | Kind::Trap => return,
                Kind::IndirectJump => {
                    if inst.disp == 0 || !self.cells.contains(&self.side.operand(address, inst)) {
                        self.returned(function);
                    }
                    return;
                }
                Kind::Jump | Kind::Branch | Kind::Loop => {
                    let target = self.side.target(address, inst);
                    match self.ids.get(&target).copied() {
                        Some(other) if other != function => self.depend(function, other),
                        _ => self.work.push((function, target)),
                    }
                    if inst.kind == Kind::Jump {
                        return;
                    }
                }
                Kind::Call | Kind::IndirectCall => {
                    if inst.disp != 0 && self.cells.contains(&self.side.operand(address, inst)) {
                        return;
                    }
                    let id = callee(self.side, address, inst).map(|callee| (callee, self.function(callee)));
                    if id.is_some_and(|(callee, _)| self.side.drops_return_address(callee)) {
                        return self.returned(function);
                    }
                    if is_end(self.side, address, after) {
                        return;
                    }
                    if let Some((_, id)) = id.filter(|&(_, id)| !self.returns[id as usize]) {
                        self.continuations[id as usize].push((function, after));
                        return;
                    }
                }
                _ => {}
            }
            address = after;
        }
    }
}
