//! Which calls never return: those of imported functions that are known not to, by the stub or slot that stands for them, and those that a
//! witness speaks for.
//!
//! A stub is recognised by its indirect jump through a slot; the slot by its dynamic relocation. A name is a proof only for functions
//! whose standard says that they do not come back.

use object::elf as numbers;

use crate::address::Va;
use crate::elf::{self, Image};

/// The dynamic symbols behind stubs and slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stubs {
    /// `(address of stub or slot)` of every function that never returns, ascending.
    no_return: Vec<Va>,
    /// Functions and stubs whose call ends some unwind entry, ascending.
    witnessed: Vec<Va>,
}

impl Stubs {
    pub(crate) fn find(image: &Image<'_>) -> Self {
        let mut no_return: Vec<Va> = image
            .dynamic_relocs
            .iter()
            .filter(|r| [numbers::R_X86_64_JUMP_SLOT, numbers::R_X86_64_GLOB_DAT].contains(&r.r_type))
            .filter(|r| image.dynamic_symbols.get(r.symbol as usize).is_some_and(|s| never_returns(s.name)))
            .map(|r| r.slot)
            .collect();
        no_return.sort();
        let stubs = elf::stubs(image).into_iter().filter(|(_, slot)| no_return.binary_search(slot).is_ok());
        let stubs: Vec<Va> = stubs.map(|(stub, _)| stub).collect();
        no_return.extend(stubs);
        no_return.sort();
        no_return.dedup();
        Self { no_return, witnessed: Vec::new() }
    }

    /// Takes note of local functions that can't return.
    pub(crate) fn add_no_return(&mut self, functions: impl Iterator<Item = Va>) {
        self.no_return.extend(functions);
        self.no_return.sort();
        self.no_return.dedup();
    }

    /// Takes note of callees that did not come back where an unwind entry ends after the call.
    pub(crate) fn add_witnesses(&mut self, callees: impl Iterator<Item = Va>) {
        self.witnessed.extend(callees);
        self.witnessed.sort();
        self.witnessed.dedup();
    }

    /// Whether calls of this function came to nothing somewhere. That is no proof that another call of it does not return (`error` does or
    /// does not by its first argument), so no edge of the program may be left out for it; what registers hold may be asked without the edge.
    pub(crate) fn is_likely_no_return(&self, va: Va) -> bool {
        self.is_no_return(va) || self.witnessed.binary_search(&va).is_ok()
    }

    /// Whether a call to this stub, or through this slot, never comes back.
    pub(crate) fn is_no_return(&self, va: Va) -> bool {
        self.no_return.binary_search(&va).is_ok()
    }
}

fn never_returns(name: &str) -> bool {
    const NAMES: [&str; 30] = [
        "_Exit",
        "_Unwind_Resume",
        "__assert_fail",
        "__chk_fail",
        "__cxa_bad_cast",
        "__cxa_bad_typeid",
        "__cxa_call_unexpected",
        "__cxa_pure_virtual",
        "__cxa_rethrow",
        "__cxa_throw",
        "__cxa_throw_bad_array_new_length",
        "__fortify_fail",
        "__libc_start_main",
        "__longjmp_chk",
        "__stack_chk_fail",
        "_exit",
        "_longjmp",
        "_ZSt9terminatev",
        "abort",
        "err",
        "errx",
        "exit",
        "longjmp",
        "pthread_exit",
        "quick_exit",
        "siglongjmp",
        "thrd_exit",
        "verr",
        "verrx",
        "__assert_perror_fail",
    ];
    NAMES.contains(&name) || name.starts_with("_ZSt") && name.contains("__throw_")
}
