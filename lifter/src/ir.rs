//! The program as lifted, level 1: code ranges, blocks, edges and references; instruction bytes stay in the file.
//!
//! **Method.** A function is a set of code ranges that only make sense together. Each range is cut into blocks at every address that
//! anything names. A block's *body* is copied as bytes when the block moves, and the references inside it are re-resolved; only
//! its *terminator*, where it is a direct branch, is made anew. Instructions are decoded again (level 2, `x86`) by the few
//! passes that look into them.
//!
//! **Invariants** (checked by `verify`, from the end of lifting on):
//! * Every byte of every movable or pinned code range belongs to one block or to padding between blocks.
//! * Blocks of a function have consecutive ids, ascending by address; they don't overlap.
//! * Every address that a reference, a slot, a table, an unwind entry or a branch names in code is the start of a block, or
//!   `Fixed`: outside everything that can move.
//! * A `Fixed` address never changes. A pinned function's blocks never change their address either, but its references do follow
//!   what moves: they are patched in place.
//! * `edges` of a block are in the order of `EdgeKind`; a function-crossing branch has no edge, it is a tail call.

use crate::address::Va;
use crate::address_index::AddressIndex;
use crate::elf::Unwind;
use crate::entity::{Block, Fde, Func, IdRange, PrimaryMap, Symbol, Table};

/// How sure a reference is, best first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// A relocation (static or dynamic), a symbol, an unwind table entry, a header field.
    Exact,
    /// A direct branch, or a rip-relative operand of a cleanly decoded function that lands where it may.
    Derived,
    /// Jump-table bounds without a proof, or an immediate of a non-PIE file.
    Inferred,
}

/// Why a function stays at its address, byte for byte but for the references that follow moved code.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinReason {
    /// Not in a section of compiled code: `.init`, `.plt`, `.fini` and the like.
    LinkerSection,
    /// It has no unwind entry, and nothing that is understood reaches it.
    NoBounds,
    /// Some bytes are not instructions, or instructions overlap.
    Undecodable,
    /// Code of the same section reads or writes its bytes as data.
    DataInText,
    /// An indirect jump whose targets could not be proven.
    UnresolvedJump,
    /// A jump table elsewhere could not be resolved and this function is reached by nothing else that is known.
    MayBeTableTarget,
    /// Something names an address inside an instruction.
    MidInstructionTarget,
    /// Its address or one inside it takes part in arithmetic.
    AddressArithmetic,
    /// An 8-bit branch of a pinned function reaches it.
    ShortReach,
    /// A signal trampoline, found by unwinders by its bytes.
    SignalTrampoline,
    /// A metadata section that is not understood names addresses in it.
    UnknownMetadata,
    /// By the address of a jump table that can't be changed where it is, code reads other things as well.
    TableAddressUsed,
    /// The loader writes into it.
    TextRelocation,
    /// Its unwind or exception tables are not understood.
    UnwindNotUnderstood,
    /// Data name the return address of one of its calls, as OCaml's table of frames does.
    ReturnAddressNamed,
    /// Code elsewhere names a place in it, as handlers of signals do that look at where the program was interrupted.
    PlaceNamed,
    /// *Guard* mode: nothing proves that all pointers to it are known, so the old entry stays.
    UnprovenPointers,
    /// *Guard* mode without a profile: each old entry would keep a jump, and no block would come to a better place for it. It is not the
    /// lifter that says so (see `Program::pin_all`).
    NotWorthMoving,
}

impl PinReason {
    /// The reason as the report and `--json` name it.
    pub fn name(self) -> &'static str {
        match self {
            PinReason::LinkerSection => "linker-section",
            PinReason::NoBounds => "no-bounds",
            PinReason::Undecodable => "undecodable",
            PinReason::DataInText => "data-in-text",
            PinReason::UnresolvedJump => "unresolved-jump",
            PinReason::MayBeTableTarget => "may-be-table-target",
            PinReason::MidInstructionTarget => "mid-instruction-target",
            PinReason::AddressArithmetic => "address-arithmetic",
            PinReason::ShortReach => "short-reach",
            PinReason::SignalTrampoline => "signal-trampoline",
            PinReason::UnknownMetadata => "unknown-metadata",
            PinReason::TableAddressUsed => "table-address-used",
            PinReason::TextRelocation => "text-relocation",
            PinReason::UnwindNotUnderstood => "unwind-not-understood",
            PinReason::ReturnAddressNamed => "return-address-named",
            PinReason::PlaceNamed => "place-named",
            PinReason::UnprovenPointers => "unproven-pointers",
            PinReason::NotWorthMoving => "not-worth-moving",
        }
    }
}

/// How the file may be relinked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RelinkMode {
    /// Every reference into text is exact or derived: the new text takes the old one's place.
    Replace,
    /// Pointers may be unseen: as `Replace`, but each address that one may hold keeps a jump to where its code went, and no word of data
    /// and no absolute address in code is changed but that of the unwind table where it is registered.
    Guard,
}

/// A place in code.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum CodeTarget {
    Block(Block),
    /// An address that never moves (a PLT stub, address 0 for an undefined weak symbol).
    Fixed(Va),
}

/// The condition of a `jcc`: the low four bits of its opcode. Inverting flips the lowest.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition(pub u8);

impl Condition {
    pub fn inverted(self) -> Self {
        Condition(self.0 ^ 1)
    }
}

/// How a block ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// The body runs into `next`.
    Fallthrough { next: Block },
    /// `jmp`. A target in another function is a tail call.
    Jump { target: CodeTarget },
    /// `jcc`. A `taken` in another function is a conditional tail call.
    Branch { condition: Condition, taken: CodeTarget, next: Block },
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: these reach 127 bytes only. The bytes up to the displacement are the terminator's
    /// own (`67 e3` for `jecxz`).
    Loop { taken: Block, next: Block },
    /// The last instruction of the body leaves: return, indirect jump, trap, or a call that does not return.
    Stop(StopKind),
}

/// What the last instruction of a body that never falls through is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StopKind {
    Return,
    /// An indirect jump through a known table.
    TableJump(Table),
    /// An indirect jump whose targets are all address-taken blocks of the closed set (computed goto).
    ComputedJump,
    /// An indirect jump out of the function.
    IndirectTailCall,
    /// A call that does not come back.
    NoReturnCall,
    /// `ud2`, `hlt`, `int3` and the like.
    Trap,
    /// The block is not understood; only in pinned functions.
    Unknown,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    Fallthrough,
    Taken,
    /// One per distinct target of a table.
    Table,
    /// From a computed goto to an address-taken block of the same function.
    Computed,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EdgeData {
    pub source: Block,
    pub target: Block,
    pub kind: EdgeKind,
}

bitflags::bitflags! {
    /// What else is known of a block.
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
    pub struct BlockFlags: u16 {
        /// Execution may come from outside the function: called, tail-called, exported or the address escapes.
        const ENTRY = 1;
        /// A slot, a `lea` or an exported symbol names it: it must begin with what it began with (`endbr64` included).
        const ADDRESS_TAKEN = 1 << 1;
        const LANDING_PAD = 1 << 2;
        /// Contains a call (direct, PLT or indirect), the terminator aside.
        const HAS_CALL = 1 << 3;
        /// Begins with `endbr64`.
        const ENDBR = 1 << 4;
        /// A jump table names it.
        const TABLE_TARGET = 1 << 5;
        /// In the body of a natural loop's header (by back edge).
        const LOOP_HEADER = 1 << 6;
        /// *Guard* mode: an unseen pointer may hold its address, which stays good, by a jump if the block moves.
        const ANCHOR = 1 << 7;
        /// A thunk for indirect branches or returns begins here, or its last part: what it returns to is not behind the call that entered it.
        const THUNK = 1 << 8;
        /// An anchor with room for a short jump only, to its [`Relay`].
        const RELAYED = 1 << 9;
        /// Ends in an indirect jump that reads its target from where the program put it when it ran: words for labels may have become addresses of code that was made then.
        const LED_BY_POINTER = 1 << 10;
        /// A handler of faults may know by the block's address what its first instruction does: that one stays the first, and the only one.
        const KNOWN_BY_FAULT = 1 << 11;
        /// Where an optimizer has put what did not run by its profile.
        const COLD = 1 << 12;
    }
}

#[derive(Clone, Debug)]
pub struct BlockData {
    pub start: Va,
    pub func: Func,
    /// The code range that holds it, an index into `Program::ranges`.
    pub range: u32,
    /// Bytes from `start` to the terminator that is made anew: what a move copies. Equal to `len` where nothing is made anew.
    pub body_len: u32,
    /// Bytes from `start` to the end of the last instruction, padding no-ops excluded.
    pub len: u32,
    /// Instructions, the terminator included.
    pub num_insts: u32,
    pub terminator: Terminator,
    /// Into `Program::edges`.
    pub edges: IdRange<EdgeData>,
    /// Into `Program::refs`; ascending by offset, none in the terminator.
    pub refs: IdRange<RefData>,
    pub flags: BlockFlags,
}

impl BlockData {
    pub fn end(&self) -> Va {
        self.start + u64::from(self.len)
    }
    /// How many bytes an anchor takes: a jump, behind the `endbr64` that the processor may ask for.
    pub fn anchor_len(&self, has_ibt: bool) -> u64 {
        if self.flags.contains(BlockFlags::RELAYED) {
            return 2;
        }
        if has_ibt && self.flags.contains(BlockFlags::ENDBR) { 9 } else { 5 }
    }
}

/// Where the jump of an anchor stands that has room for a short jump only: to the relay. In what the anchor's function leaves free.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    pub anchor: Va,
    pub at: Va,
}

impl Relay {
    /// In bytes: `jmp` with a displacement of 32 bits.
    pub const LEN: u64 = 5;
}

/// A contiguous piece of a function in the input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CodeRange {
    pub start: Va,
    pub end: Va,
    pub func: Func,
    pub fde: Option<Fde>,
    /// Blocks of ranges with different classes never share an output fragment: they need different CIEs or exception tables.
    pub unwind_class: u32,
}

#[derive(Clone, Debug)]
pub struct FuncData {
    /// The block where a call to the function arrives.
    pub entry: Block,
    pub blocks: IdRange<Block>,
    /// Into `Program::ranges`, ascending by address; the one with the entry is `primary`.
    pub ranges: IdRange<CodeRange>,
    pub primary_range: u32,
    pub symbol: Option<Symbol>,
    pub pin: Option<PinReason>,
    /// A hash of what the function does that is the same wherever it lies: instruction bytes with references masked, and the shape of the
    /// control flow. Equal functions share it.
    pub content_hash: u64,
}

impl FuncData {
    pub fn is_movable(&self) -> bool {
        self.pin.is_none()
    }
}

/// How a reference inside an instruction is encoded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RefKind {
    /// 32-bit displacement from the end of the instruction: a call, or a rip-relative operand.
    Rel32,
    /// 32-bit absolute, zero-extended.
    Abs32,
    /// 32-bit absolute, sign-extended.
    Abs32S,
    /// 64-bit absolute (`movabs`).
    Abs64,
}

/// What a reference does with the place it names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RefRole {
    /// `call target`.
    Call,
    /// `call *slot(%rip)` or `jmp *slot(%rip)`.
    IndirectThroughSlot,
    /// The address itself is computed: `lea`, an absolute immediate.
    Address,
    /// A memory operand: a load, a store, or both.
    Memory,
    /// A branch that is kept in the body with its 32-bit displacement (`xbegin`).
    Branch,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RefTarget {
    Block(Block),
    /// An absolute address that never moves: data, a stub, anything outside movable code.
    Fixed(Va),
    /// The jump table whose address this is.
    Table(Table),
    /// The unwind entries from this address on, which start-up code registers: where the unwind table begins, if it moves.
    UnwindTable(Va),
}

/// A field of an instruction in a block's body that names a place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RefData {
    /// Of the field, from the block's start, in bytes.
    pub offset: u32,
    /// Bytes from the start of the field to the end of the instruction: what a displacement counts from.
    pub to_end: u8,
    pub kind: RefKind,
    pub role: RefRole,
    pub evidence: Evidence,
    pub target: RefTarget,
}

/// A word outside code that holds a place in code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SlotData {
    pub at: Va,
    pub kind: SlotKind,
    pub target: Block,
    pub evidence: Evidence,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// A word that the loader relocates: index into `Image::dynamic_relocs`. Both the addend and the word in place follow.
    Dynamic(u32),
    /// A 64-bit word with the address (non-PIE).
    Abs64,
    /// A 32-bit word with the address (non-PIE).
    Abs32,
    /// A 32-bit word with `target - base` for a fixed base.
    Rel32 { base: Va },
}

/// What the entries of a jump table are counted from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TableBase {
    /// From the table itself (PIC switch tables).
    Own,
    /// From a place in code (differences of labels).
    Code(Block),
    /// From a fixed address.
    Fixed(Va),
    /// Entries are addresses.
    Absolute,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TableBound {
    /// By a compare, mask or range on the index on every path, or by relocations: the count is exact.
    Proven,
    /// By where the entries stop making sense: the count is an upper bound, so the table is copied, never overwritten.
    Scanned,
}

/// A jump table: entries of 4 or 8 bytes that hold places in code.
#[derive(Clone, Debug)]
pub struct TableData {
    pub at: Va,
    /// 4 or 8.
    pub entry_size: u8,
    pub base: TableBase,
    pub bound: TableBound,
    /// Into `Program::table_targets`, one per entry, in order.
    pub targets: IdRange<Block>,
    /// Whether every reference to its bytes is the address of its start, taken by jumps through it, and all its words are entries: then it may be overwritten in place.
    pub is_exclusive: bool,
}

impl TableData {
    /// Its size in bytes.
    pub fn byte_len(&self) -> u64 {
        u64::from(self.entry_size) * self.targets.len() as u64
    }
}

/// The lifted program, level 1.
#[derive(Debug, Default)]
pub struct Program {
    pub mode: Option<RelinkMode>,
    pub funcs: PrimaryMap<Func, FuncData>,
    pub blocks: PrimaryMap<Block, BlockData>,
    pub ranges: Vec<CodeRange>,
    pub edges: Vec<EdgeData>,
    pub refs: Vec<RefData>,
    /// Ascending by address.
    pub slots: Vec<SlotData>,
    pub tables: PrimaryMap<Table, TableData>,
    pub table_targets: Vec<Block>,
    pub unwind: Unwind,
    /// *Guard* mode. Ascending by anchor.
    pub relays: Vec<Relay>,
    /// Addresses in `.eh_frame` that code may hold: start-up code registers the entries from such a place on. Ascending.
    pub names_in_unwind: Vec<Va>,
    /// The one of them that nothing holds but references to the unwind table, if there is one.
    pub registered_table: Option<Va>,
    /// All blocks, ascending by address: the index behind `block_at`.
    pub blocks_by_address: Vec<Block>,
    /// Where to look in it.
    pub block_index: AddressIndex,
}

impl Program {
    /// The block that starts at an address.
    pub fn block_at(&self, va: Va) -> Option<Block> {
        let block = self.block_containing(va)?;
        (self.blocks[block].start == va).then_some(block)
    }
    /// The block whose instructions contain an address.
    pub fn block_containing(&self, va: Va) -> Option<Block> {
        let order = self.blocks_by_address.as_slice();
        let after = self.block_index.count_up_to(va, order.len(), |i| self.blocks[order[i]].start);
        let block = *order.get(after.checked_sub(1)?)?;
        let data = &self.blocks[block];
        (va < data.end() || va == data.start).then_some(block)
    }
    pub fn block_edges(&self, block: Block) -> &[EdgeData] {
        &self.edges[self.blocks[block].edges.as_usize()]
    }
    pub fn block_refs(&self, block: Block) -> &[RefData] {
        &self.refs[self.blocks[block].refs.as_usize()]
    }
    pub fn targets_of(&self, table: Table) -> &[Block] {
        &self.table_targets[self.tables[table].targets.as_usize()]
    }
    pub fn func_ranges(&self, func: Func) -> &[CodeRange] {
        &self.ranges[self.funcs[func].ranges.as_usize()]
    }
    pub fn func_of(&self, block: Block) -> Func {
        self.blocks[block].func
    }
    /// Bytes of code in a function, padding between its blocks included.
    pub fn func_size(&self, func: Func) -> u64 {
        self.func_ranges(func).iter().map(|r| r.end - r.start).sum()
    }
    /// Keeps every function where it is; one that is pinned already keeps its reason.
    pub fn pin_all(&mut self, reason: PinReason) {
        for func in self.funcs.values_mut() {
            func.pin.get_or_insert(reason);
        }
    }
    /// Whether this mode lets the new text take the old one's place.
    pub fn is_replaceable(&self) -> bool {
        self.mode == Some(RelinkMode::Replace)
    }
}
