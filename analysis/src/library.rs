//! What is proven of functions that are not in the file: facts by name, each from the standard that defines it.
//!
//! **Sources.** ISO C (C17 §7.22.3, §7.24, §7.12, §7.4), POSIX.1-2017 for the rest; `_chk` variants are the LSB's (5.0, Core, §"libc interfaces") and behave as their
//! namesakes or abort. A name is a proof because the standard reserves it: a program that defines `memcpy` as something else is not a C
//! program, and compilers rely on the same. Registers are clobbered as the psABI allows in all cases.
//!
//! **What a fact says**: through which arguments memory is read and written, and which of them may still be known somewhere afterward. Everything
//! else of memory that the caller can see stays as it is, `errno` and the function's own state aside, which are in nobody's frame.
//!
//! **Functions that return twice** are those that compilers treat so by name (`setjmp` and its kin, `vfork`, `getcontext`): no analysis can see that from a
//! call, so the compiler that made the code could not either.

use lifter::elf::stubs;
use lifter::{Image, Va};
use object_constants::{GLOB_DAT, JUMP_SLOT};

use crate::values::code::{ARGUMENTS, Register, RegisterSet};

mod object_constants {
    //! Numbers of the psABI's relocation types.
    pub(super) const GLOB_DAT: u32 = 6;
    pub(super) const JUMP_SLOT: u32 = 7;
}

/// What is known of a function by its name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Arguments through which memory is read.
    pub reads: RegisterSet,
    /// Arguments through which memory is written.
    pub writes: RegisterSet,
    /// Arguments that may be kept.
    pub keeps: RegisterSet,
    /// The argument that is returned.
    pub returns: Option<Register>,
    pub returns_twice: bool,
}

const RDI: RegisterSet = 1 << 7;
const RSI: RegisterSet = 1 << 6;
const RDX: RegisterSet = 1 << 2;

const fn fact(reads: RegisterSet, writes: RegisterSet, returns: Option<Register>) -> Fact {
    Fact { reads, writes, keeps: 0, returns, returns_twice: false }
}

/// By name. Functions that return a pointer into their argument keep it, as far as the caller can tell.
fn fact_of(name: &str) -> Option<Fact> {
    let name = name.strip_prefix("__isoc99_").unwrap_or(name);
    let finder = |reads: RegisterSet, kept: RegisterSet| Fact { keeps: kept, ..fact(reads, 0, None) };
    Some(match name {
        "memcpy" | "memmove" | "__memcpy_chk" | "__memmove_chk" | "strcpy" | "strncpy" | "strcat" | "strncat"
        | "__strcpy_chk" | "__strncpy_chk" | "__strcat_chk" | "__strncat_chk" => fact(RDI | RSI, RDI, Some(7)),
        "memset" | "__memset_chk" => fact(0, RDI, Some(7)),
        "bzero" | "explicit_bzero" => fact(0, RDI, None),
        "memcmp" | "bcmp" | "strcmp" | "strncmp" | "strcasecmp" | "strncasecmp" | "strspn" | "strcspn" | "strcoll" => {
            fact(RDI | RSI, 0, None)
        }
        "strlen" | "strnlen" | "wcslen" => fact(RDI, 0, None),
        "memchr" | "memrchr" | "rawmemchr" | "strchr" | "strrchr" | "strchrnul" => finder(RDI, RDI),
        "strstr" | "strpbrk" | "memmem" => finder(RDI | RSI | RDX, RDI),
        "malloc"
        | "calloc"
        | "abs"
        | "labs"
        | "isatty"
        | "getpid"
        | "getppid"
        | "getuid"
        | "geteuid"
        | "getgid"
        | "getegid"
        | "close"
        | "dup"
        | "dup2"
        | "fsync"
        | "fdatasync"
        | "sysconf"
        | "getpagesize"
        | "lseek"
        | "lseek64"
        | "ftruncate"
        | "ftruncate64"
        | "usleep"
        | "sched_yield"
        | "toupper"
        | "tolower"
        | "isalnum"
        | "isalpha"
        | "isdigit"
        | "isspace"
        | "isupper"
        | "islower"
        | "isprint"
        | "ispunct"
        | "isxdigit"
        | "__errno_location"
        | "__ctype_b_loc"
        | "__ctype_tolower_loc"
        | "__ctype_toupper_loc"
        | "umask"
        | "random"
        | "rand" => fact(0, 0, None),
        "free" => fact(0, 0, None),
        "realloc" => Fact { keeps: RDI, ..fact(RDI, RDI, None) },
        "sin" | "cos" | "tan" | "asin" | "acos" | "atan" | "atan2" | "sinh" | "cosh" | "tanh" | "exp" | "exp2" | "log"
        | "log2" | "log10" | "log1p" | "expm1" | "pow" | "sqrt" | "cbrt" | "hypot" | "floor" | "ceil" | "trunc" | "round"
        | "rint" | "nearbyint" | "fmod" | "fabs" | "ldexp" | "fmin" | "fmax" | "floorf" | "ceilf" | "sqrtf" | "powf" | "expf"
        | "logf" | "sinf" | "cosf" | "fmodf" | "roundf" | "truncf" | "lround" | "llround" | "lrint" | "erf" | "erfc"
        | "lgamma" | "tgamma" | "copysign" | "nextafter" => fact(0, 0, None),
        "frexp" | "modf" => fact(0, RDI, None),
        "time" => fact(0, RDI, None),
        "gettimeofday" | "clock_gettime" => fact(0, RDI | RSI, None),
        "read" | "pread" | "pread64" => fact(0, RSI, None),
        "write" | "pwrite" | "pwrite64" => fact(RSI, 0, None),
        "open" | "open64" | "access" | "unlink" | "mkdir" | "rmdir" | "chdir" | "getenv" | "atoi" | "atol" | "atof" => {
            fact(RDI, 0, None)
        }
        "stat" | "lstat" | "stat64" | "lstat64" | "readlink" | "getcwd" | "gethostname" => fact(RDI, RDI | RSI, None),
        "fstat" | "fstat64" => fact(0, RSI, None),
        "strtol" | "strtoul" | "strtoll" | "strtoull" | "strtod" | "strtof" => Fact { keeps: RDI, ..fact(RDI, RSI, None) },
        "fread" => fact(RDI, RDI, None),
        "fwrite" | "fputs" | "puts" => fact(RDI, 0, None),
        "fputc" | "putc" | "putchar" | "fgetc" | "getc" | "getchar" | "fflush" | "feof" | "ferror" => fact(0, 0, None),
        "__stack_chk_fail" | "abort" | "exit" | "_exit" => fact(0, 0, None),
        _ if returns_twice(name) => {
            Fact { reads: ARGUMENTS, writes: ARGUMENTS, keeps: ARGUMENTS, returns: None, returns_twice: true }
        }
        _ => return None,
    })
}

/// The names that compilers know, underscores in front aside.
fn returns_twice(name: &str) -> bool {
    let bare = name.trim_start_matches('_');
    let bare = bare.split('@').next().unwrap_or(bare);
    ["setjmp", "sigsetjmp", "savectx", "vfork", "getcontext", "xsetjmp", "xsigsetjmp"].contains(&bare)
}

/// The imported functions that something is known of, by the addresses of their stubs and slots.
#[derive(Clone, Debug, Default)]
pub struct Library {
    facts: Vec<Fact>,
    /// Stub or slot to index, ascending.
    by_address: Vec<(Va, u32)>,
    /// All stubs of imported functions, known or not, ascending.
    stubs: Vec<Va>,
}

impl Library {
    pub fn find(image: &Image<'_>) -> Self {
        let mut library = Library::default();
        let imports = image.dynamic_relocs.iter().filter(|r| r.r_type == JUMP_SLOT || r.r_type == GLOB_DAT);
        let mut slots: Vec<(Va, &str)> = imports
            .filter_map(|r| Some((r.slot, image.dynamic_symbols.get(r.symbol as usize).filter(|s| !s.name.is_empty())?.name)))
            .collect();
        slots.sort_unstable();
        for &(slot, name) in &slots {
            library.add(slot, name);
        }
        for (stub, slot) in stubs(image) {
            library.stubs.push(stub);
            if let Ok(found) = slots.binary_search_by_key(&slot, |s| s.0) {
                library.add(stub, slots[found].1);
            }
        }
        library.by_address.sort_unstable();
        library.stubs.sort_unstable();
        library
    }

    fn add(&mut self, at: Va, name: &str) {
        if let Some(fact) = fact_of(name) {
            self.by_address.push((at, self.facts.len() as u32));
            self.facts.push(fact);
        }
    }

    /// The function behind a stub or a slot, if something is known of it.
    pub fn at(&self, va: Va) -> Option<u32> {
        self.by_address.binary_search_by_key(&va, |e| e.0).ok().map(|found| self.by_address[found].1)
    }
    pub fn is_stub(&self, va: Va) -> bool {
        self.stubs.binary_search(&va).is_ok()
    }
    pub fn fact(&self, index: u32) -> &Fact {
        &self.facts[index as usize]
    }
}
