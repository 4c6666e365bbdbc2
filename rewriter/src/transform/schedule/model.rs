//! How long a piece of straight-line code takes, by a model of two processors.
//!
//! **Model.** Instructions are dispatched in order, a number of operations a cycle, into a window of so many; each operation starts as soon as what it reads is there and one of its ports is
//! free, older ones first; results are there after the latency. Of an instruction with an operand in memory the address is needed first, what it adds to only when the load is done.
//! Caches hit, branches are foreseen, the front end keeps up.
//!
//! **Sources.** Widths, windows, ports and latencies are those of Intel's Skylake and AMD's Zen 3 as published: Intel 64 and IA-32 Optimization Reference Manual, appendix D and
//! section 2.6; AMD Software Optimization Guide for Family 19h (56665), section 2 and its instruction latency table; A. Fog, *Instruction tables* and *The microarchitecture of Intel, AMD and VIA
//! CPUs*. Where a class holds instructions with different numbers, the usual form's is taken. What a number is off by makes an order less good, never wrong.
//!
//! **Terminates**: a start is found at the latest behind the last cycle in which a port is taken.

use std::sync::LazyLock;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::effects::{Effects, Registers};

/// What decides about ports and latency.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Class {
    /// Nothing but a load or a store, or nothing at all.
    None,
    Move,
    Simple,
    Lea,
    SlowLea,
    Shift,
    SlowShift,
    Condition,
    Multiply,
    WideMultiply,
    Divide,
    CountBits,
    VectorMove,
    VectorLogic,
    VectorInteger,
    VectorShift,
    VectorMultiply,
    Shuffle,
    FloatAdd,
    FloatMultiply,
    FloatCompare,
    FloatDivide,
    FloatRoot,
    Convert,
    ToVector,
    FromVector,
}

/// Ports that an operation may go to, cycles until its result is there, cycles that it keeps the port, operations that it counts for.
#[derive(Copy, Clone, Debug)]
struct Unit {
    ports: u16,
    latency: u32,
    busy: u32,
    operations: u32,
}

const fn unit(ports: u16, latency: u32, busy: u32, operations: u32) -> Unit {
    Unit { ports, latency, busy, operations }
}

/// A processor.
#[derive(Debug)]
pub(super) struct Processor {
    /// Operations that are dispatched in a cycle.
    width: u32,
    /// Operations under way.
    window: usize,
    load: Unit,
    vector_load: Unit,
    store_address: Unit,
    store_data: Unit,
    unit_of: fn(Class) -> Unit,
}

/// Ports 0, 1, 5, 6 compute (bits 0 to 3), 2 and 3 load (4, 5), 7 makes addresses of stores (6), 4 stores (7).
const SKYLAKE: Processor = Processor {
    width: 4,
    window: 224,
    load: unit(0x30, 5, 1, 1),
    vector_load: unit(0x30, 6, 1, 1),
    store_address: unit(0x70, 1, 1, 0),
    store_data: unit(0x80, 1, 1, 1),
    unit_of: |class| match class {
        Class::None => unit(0, 0, 1, 1),
        Class::Move | Class::Simple => unit(0xf, 1, 1, 1),
        Class::Lea => unit(0x6, 1, 1, 1),
        Class::SlowLea => unit(0x2, 3, 1, 1),
        Class::Shift | Class::Condition => unit(0x9, 1, 1, 1),
        Class::SlowShift => unit(0x9, 2, 2, 3),
        Class::Multiply | Class::CountBits => unit(0x2, 3, 1, 1),
        Class::WideMultiply => unit(0x2, 4, 1, 2),
        Class::Divide => unit(0x1, 26, 6, 10),
        Class::VectorMove | Class::VectorLogic => unit(0x7, 1, 1, 1),
        Class::VectorInteger => unit(0x7, 1, 1, 1),
        Class::VectorShift => unit(0x3, 1, 1, 1),
        Class::VectorMultiply => unit(0x3, 5, 1, 1),
        Class::Shuffle => unit(0x4, 1, 1, 1),
        Class::FloatAdd | Class::FloatMultiply => unit(0x3, 4, 1, 1),
        Class::FloatCompare => unit(0x1, 3, 1, 1),
        Class::FloatDivide => unit(0x1, 13, 4, 1),
        Class::FloatRoot => unit(0x1, 16, 5, 1),
        Class::Convert => unit(0x3, 5, 1, 2),
        Class::ToVector => unit(0x4, 2, 1, 1),
        Class::FromVector => unit(0x1, 2, 1, 1),
    },
};

/// Four integer pipes (bits 0 to 3), three that make addresses (4 to 6), four vector pipes (7 to 10), one for what is stored (11).
const ZEN3: Processor = Processor {
    width: 6,
    window: 256,
    load: unit(0x70, 4, 1, 1),
    vector_load: unit(0x70, 7, 1, 1),
    store_address: unit(0x70, 1, 1, 0),
    store_data: unit(0x800, 1, 1, 1),
    unit_of: |class| match class {
        Class::None | Class::Move | Class::VectorMove => unit(0, 0, 1, 1),
        Class::Simple | Class::Lea => unit(0xf, 1, 1, 1),
        Class::SlowLea => unit(0xf, 2, 1, 2),
        Class::Shift | Class::SlowShift => unit(0x6, 1, 1, 1),
        Class::Condition => unit(0x9, 1, 1, 1),
        Class::Multiply => unit(0x2, 3, 1, 1),
        Class::WideMultiply => unit(0x2, 3, 2, 2),
        Class::Divide => unit(0x4, 12, 6, 2),
        Class::CountBits => unit(0xf, 1, 1, 1),
        Class::VectorLogic | Class::VectorInteger => unit(0x780, 1, 1, 1),
        Class::VectorShift | Class::Shuffle => unit(0x300, 1, 1, 1),
        Class::VectorMultiply => unit(0x480, 3, 1, 1),
        Class::FloatAdd => unit(0x600, 3, 1, 1),
        Class::FloatMultiply => unit(0x180, 3, 1, 1),
        Class::FloatCompare => unit(0x600, 3, 1, 2),
        Class::FloatDivide => unit(0x100, 12, 5, 1),
        Class::FloatRoot => unit(0x100, 18, 8, 1),
        Class::Convert => unit(0x600, 3, 1, 1),
        Class::ToVector => unit(0x200, 3, 1, 1),
        Class::FromVector => unit(0x200, 3, 1, 2),
    },
};

/// The processors by which an order is judged.
pub(super) const PROCESSORS: [&Processor; 2] = [&SKYLAKE, &ZEN3];

/// The flags, behind all registers.
const FLAGS_AT: usize = 48;
const PLACES: usize = 49;

/// An instruction as the model sees it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Step {
    class: Class,
    address: Registers,
    reads: Registers,
    writes: Registers,
    loads: bool,
    stores: bool,
    is_vector: bool,
    /// It makes no operation of its own, as the second of a fused pair.
    is_fused: bool,
}

impl Step {
    pub(super) fn new(instruction: &Instruction, effects: &Effects) -> Self {
        let flags = |mask: u32| if mask == 0 { 0 } else { 1 << FLAGS_AT };
        let is_vector = (0..instruction.op_count()).any(|at| instruction.op_register(at).is_vector_register());
        let mut step = Step {
            class: class_of(instruction),
            address: effects.address,
            reads: effects.reads | flags(effects.flags_read),
            writes: effects.writes | flags(effects.flags_written),
            loads: effects.loads,
            stores: effects.stores,
            is_vector,
            is_fused: false,
        };
        if is_zero_idiom(instruction) {
            (step.class, step.reads) = (Class::None, 0);
        }
        step
    }

    /// An instruction that stays where it is, of which the registers are all that counts.
    pub(super) fn fixed(reads: Registers, writes: Registers, reads_flags: bool, loads: bool, stores: bool) -> Self {
        let reads = if reads_flags { reads | 1 << FLAGS_AT } else { reads };
        Step { class: Class::Simple, address: 0, reads, writes, loads, stores, is_vector: false, is_fused: false }
    }

    /// The same, as the second of a pair that the decoder makes one of.
    pub(super) fn fused(self) -> Self {
        Step { is_fused: true, ..self }
    }

    /// Cycles until its results are there, once all that it reads is.
    pub(super) fn latency(&self, processor: &Processor) -> u32 {
        let load = if self.loads { self.load_of(processor).latency } else { 0 };
        load + (processor.unit_of)(self.class).latency
    }

    /// The same for what is no part of the address.
    pub(super) fn late_latency(&self, processor: &Processor) -> u32 {
        (processor.unit_of)(self.class).latency
    }

    fn load_of(&self, processor: &Processor) -> Unit {
        if self.is_vector { processor.vector_load } else { processor.load }
    }
}

/// One run through a piece of code, or several behind each other.
struct Clock<'p> {
    processor: &'p Processor,
    ready: [u32; PLACES],
    /// By cycle, the ports that are taken.
    taken: Vec<u16>,
    dispatched_at: u32,
    dispatched: u32,
    /// By operation, when it and all before it are done.
    done: Vec<u32>,
}

impl Clock<'_> {
    /// When the next operation may start at the earliest.
    fn dispatch(&mut self) -> u32 {
        let behind = self.done.len().checked_sub(self.processor.window).map_or(0, |at| self.done[at]);
        if behind > self.dispatched_at {
            (self.dispatched_at, self.dispatched) = (behind, 0);
        }
        if self.dispatched == self.processor.width {
            (self.dispatched_at, self.dispatched) = (self.dispatched_at + 1, 0);
        }
        self.dispatched += 1;
        self.dispatched_at
    }

    /// Starts an operation; gives when it is done.
    fn start(&mut self, unit: Unit, ready: u32) -> u32 {
        let mut from = self.dispatched_at;
        for _ in 0..unit.operations {
            from = self.dispatch();
        }
        let mut at = ready.max(from) as usize;
        if unit.ports != 0 {
            let is_free = |taken: u16| taken & unit.ports != unit.ports;
            while !self.taken.get(at).copied().is_none_or(is_free) {
                at += 1;
            }
            let end = at + unit.busy as usize;
            if self.taken.len() < end {
                self.taken.resize(end, 0);
            }
            let free = unit.ports & !self.taken[at];
            // The last of the free ones: those before it do more kinds of work.
            let port = 1 << (15 - free.leading_zeros());
            self.taken[at..end].iter_mut().for_each(|taken| *taken |= port);
        }
        let end = at as u32 + unit.latency;
        let done = self.done.last().map_or(end, |&last| last.max(end));
        self.done.extend((0..unit.operations).map(|_| done));
        end
    }

    fn ready(&self, places: Registers) -> u32 {
        let mut left = places;
        let mut ready = 0;
        while left != 0 {
            ready = ready.max(self.ready[left.trailing_zeros() as usize]);
            left &= left - 1;
        }
        ready
    }

    fn step(&mut self, step: &Step) {
        let mut ready = self.ready(step.reads);
        let address = self.ready(step.address);
        let has_operation = step.class != Class::None;
        if step.loads {
            let unit = step.load_of(self.processor);
            ready = ready.max(self.start(unit, address));
        }
        let mut end = ready;
        if has_operation {
            let mut unit = (self.processor.unit_of)(step.class);
            // A load and what is done with it are dispatched as one.
            if step.loads || step.is_fused {
                unit.operations = unit.operations.saturating_sub(1);
            }
            end = self.start(unit, ready);
        } else if !step.loads && !step.stores {
            end = self.start((self.processor.unit_of)(Class::None), ready);
        }
        if step.stores {
            self.start(self.processor.store_address, address);
            self.start(self.processor.store_data, end);
        }
        let mut left = step.writes;
        while left != 0 {
            self.ready[left.trailing_zeros() as usize] = end;
            left &= left - 1;
        }
    }
}

/// What an order costs on a processor: cycles of one run, and of sixteen more behind the first ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    pub(super) once: u32,
    pub(super) again: u32,
}

impl Estimate {
    pub(super) fn is_no_worse(self, other: Self) -> bool {
        self.once <= other.once && self.again <= other.again
    }
}

const WARM_UP: usize = 4;
const ROUNDS: usize = 16;

/// Runs steps in an order.
pub(super) fn estimate(processor: &Processor, steps: &[Step], order: &[u32]) -> Estimate {
    let mut clock = Clock { processor, ready: [0; PLACES], taken: Vec::new(), dispatched_at: 0, dispatched: 0, done: Vec::new() };
    let mut ends = [0; WARM_UP + ROUNDS];
    for end in &mut ends {
        order.iter().for_each(|&at| clock.step(&steps[at as usize]));
        *end = clock.done.last().copied().unwrap_or(0);
    }
    Estimate { once: ends[0], again: ends[WARM_UP + ROUNDS - 1] - ends[WARM_UP - 1] }
}

fn is_zero_idiom(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let count = instruction.op_count();
    let is_register = |at: u32| instruction.op_kind(at) == OpKind::Register;
    let name = matches!(instruction.mnemonic(), Xor | Sub | Pxor | Xorps | Xorpd | Vpxor | Vxorps | Vxorpd);
    name && count >= 2
        && is_register(count - 1)
        && is_register(count - 2)
        && instruction.op_register(count - 1) == instruction.op_register(count - 2)
        && instruction.op0_register().size() >= 4
}

fn class_of(instruction: &Instruction) -> Class {
    use Mnemonic::*;
    let is_register = |at: u32| instruction.op_kind(at) == OpKind::Register;
    let is_vector = |at: u32| is_register(at) && instruction.op_register(at).is_vector_register();
    let has_memory = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    match instruction.mnemonic() {
        Mov | Movzx | Movsx | Movsxd if has_memory => Class::None,
        Mov if is_register(1) => Class::Move,
        Lea => {
            let has_all = instruction.memory_base() != Register::None
                && instruction.memory_index() != Register::None
                && instruction.memory_displacement64() != 0;
            if has_all { Class::SlowLea } else { Class::Lea }
        }
        Shl | Sal | Shr | Sar | Rol | Ror if is_register(1) => Class::SlowShift,
        Shl | Sal | Shr | Sar | Rol | Ror | Rorx | Shlx | Shrx | Sarx | Bt | Bts | Btr | Btc => Class::Shift,
        Shld | Shrd | Popcnt | Lzcnt | Tzcnt | Bsf | Bsr | Pdep | Pext => Class::CountBits,
        Imul if instruction.op_count() > 1 => Class::Multiply,
        Imul | Mul | Mulx => Class::WideMultiply,
        Div | Idiv => Class::Divide,
        Adc | Sbb => Class::Condition,
        _ => {
            let known = CLASSES[instruction.mnemonic() as usize];
            match known {
                Class::VectorMove if has_memory => Class::None,
                Class::VectorMove if is_vector(0) && is_register(1) && !is_vector(1) => Class::ToVector,
                Class::VectorMove if is_register(0) && !is_vector(0) => Class::FromVector,
                known => known,
            }
        }
    }
}

/// Whether an instruction computes with floating-point numbers, so that it may raise an exception of those.
pub(super) fn is_float_arithmetic(name: Mnemonic) -> bool {
    use Class::*;
    matches!(CLASSES[name as usize], FloatAdd | FloatMultiply | FloatCompare | FloatDivide | FloatRoot | Convert)
}

/// The classes that names tell, by mnemonic.
static CLASSES: LazyLock<Vec<Class>> =
    LazyLock::new(|| Mnemonic::values().map(|name| class_of_name(&format!("{name:?}").to_lowercase())).collect());

/// Beginnings of names, without the `v` of the newer encoding, and their class; the first that fits counts.
const BEGINNINGS: [(Class, &[&str]); 17] = [
    (Class::Condition, &["cmov", "set"]),
    (Class::FloatDivide, &["divs", "divp", "rcp"]),
    (Class::FloatRoot, &["sqrt", "rsqrt"]),
    (Class::FloatCompare, &["comis", "ucomis"]),
    (Class::FloatAdd, &["adds", "addp", "subs", "subp", "mins", "minp", "maxs", "maxp", "cmps", "cmpp", "hadd", "hsub", "round"]),
    (Class::FloatAdd, &["cmpeqs", "cmpeqp", "cmplt", "cmple", "cmpneq", "cmpnlt", "cmpnle", "cmpord", "cmpunord"]),
    (Class::FloatMultiply, &["muls", "mulp", "fmadd", "fmsub", "fnmadd", "fnmsub", "dpp"]),
    (Class::Convert, &["cvt"]),
    (Class::FromVector, &["movmsk", "pmovmsk", "pextr", "extractps", "ptest"]),
    (Class::Shuffle, &["movhlps", "movlhps", "movhp", "movlp", "movdd", "movsh", "movsl", "pshuf", "shufp", "punpck", "unpck"]),
    (
        Class::Shuffle,
        &["pack", "palignr", "pinsr", "insertp", "perm", "pbroadcast", "broadcast", "extract", "insert", "pmovs", "pmovz"],
    ),
    (Class::VectorMove, &["movap", "movup", "movdq", "movq", "movd", "movs", "lddqu"]),
    (Class::VectorLogic, &["andp", "andnp", "orp", "xorp", "pand", "por", "pxor"]),
    (Class::VectorShift, &["psll", "psrl", "psra"]),
    (Class::VectorMultiply, &["pmul", "pmadd", "psadbw"]),
    (Class::VectorInteger, &["pa", "ps", "pc", "pm", "pb", "blend"]),
    (Class::VectorInteger, &["phadd", "phsub"]),
];

fn class_of_name(name: &str) -> Class {
    // Names of general instructions that begin like those of vectors.
    if matches!(name, "mov" | "movzx" | "movsx" | "movsxd" | "movsb" | "movsw" | "movsq" | "setssbsy" | "pause" | "pop" | "push")
    {
        return Class::Simple;
    }
    let plain = name.strip_prefix('v').unwrap_or(name);
    let begins = |list: &[&str]| list.iter().any(|beginning| plain.starts_with(beginning));
    BEGINNINGS.iter().find(|(_, list)| begins(list)).map_or(Class::Simple, |&(class, _)| class)
}
