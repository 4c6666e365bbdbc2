//! A cluster of units decoded for analysis: its instructions, blocks and predecessors. It lives for one cluster's turn only.
//!
//! **Followed calls.** An outliner moves a few instructions out of several functions into one that they call, whatever registers these read and write: a
//! load from a jump table, say. So where jumps are asked about, the instructions of a callee that goes straight to its return are copied behind
//! those of the cluster, once for each call, and the graph leads through them ([`followed`]). Such a call neither is a definition of its result nor leaves the function.

use std::ops::Range;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use smallvec::SmallVec;

use crate::address::Va;
use crate::discover::names::{NamedBy, Names};
use crate::discover::stubs::Stubs;
use crate::discover::units::{Unit, Units};
use crate::elf::{Image, Unwind};
use crate::x86::{Flow, decode_bytes, flow_of, is_nop};

mod followed;

/// The sixteen general registers as bits, `rax` lowest, as the processor numbers them.
pub(crate) type RegisterMask = u16;

/// `rax`, `rcx`, `rdx`, `rsi`, `rdi`, `r8` to `r11`: gone after a call.
pub(crate) const CALLER_SAVED: RegisterMask = 0x0fc7;

/// Fewer predecessors are no hub.
const HUB_MIN: usize = 16;

/// The number of a general register of any width, `rsp` 4.
pub(crate) fn general(register: Register) -> Option<u8> {
    register.is_gpr().then(|| register.full_register().number() as u8)
}

#[derive(Debug)]
pub(crate) struct BodyBlock {
    /// Indices into `Body::instructions`.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// Ascending.
    pub(crate) preds: SmallVec<[u32; 4]>,
    /// Those that are not in `Body::hub`, where all of the hub are predecessors.
    pub(crate) preds_beyond_hub: Option<Box<[u32]>>,
    succs: SmallVec<[u32; 2]>,
    pub(crate) named_by: NamedBy,
    /// The registers that some instruction writes.
    pub(crate) writes: RegisterMask,
    /// The registers that hold something else behind the block than before: written, or lost in a call.
    pub(crate) clobbers: RegisterMask,
    /// Whether memory may be written, by the block or in a call.
    pub(crate) stores: bool,
    /// Execution may arrive from outside the cluster.
    pub(crate) is_entry: bool,
}

#[derive(Debug)]
pub(crate) struct Body {
    /// Those of the cluster, ascending by address, then those of followed callees.
    pub(crate) instructions: Vec<Instruction>,
    /// How many of them are the cluster's.
    pub(crate) num_own: usize,
    /// The registers that each instruction writes.
    pub(crate) writes: Vec<RegisterMask>,
    /// The registers that each instruction reads.
    pub(crate) reads: Vec<RegisterMask>,
    /// Ascending by address, then one for each followed call.
    pub(crate) blocks: Vec<BodyBlock>,
    /// Whether each instruction may write memory.
    pub(crate) stores: Vec<bool>,
    /// Whether each instruction leaves the function for a while: a call, or the kernel.
    pub(crate) leaves: Vec<bool>,
    /// Whether `rbp` points into the frame somewhere.
    pub(crate) has_frame_pointer: bool,
    /// Whether an address in the frame is put anywhere but into `rsp` and `rbp`.
    pub(crate) frame_escapes: bool,
    leaders: Vec<Va>,
    /// Where the cluster's instructions are without a hole, as starts and ends, ascending.
    stretches: Vec<(Va, Va)>,
    /// By block of the cluster, its address.
    block_starts: Vec<Va>,
    /// Ascending by call; of each the instructions of the callee.
    followed: Vec<(usize, Range<u32>)>,
    /// Where calls return although they came to nothing elsewhere. Ascending.
    returned_to: Vec<Va>,
}

impl Body {
    /// Decodes a cluster and cuts it at every address that is named so far.
    pub(crate) fn decode(image: &Image<'_>, units: &Units, members: &[Unit], names: &Names, stubs: &Stubs) -> Self {
        let mut instructions = Vec::new();
        let mut leaders: Vec<Va> = Vec::new();
        for &unit in members {
            let data = &units[unit];
            decode_bytes(image.read(data.start, data.len()).unwrap_or(&[]), data.start, &mut instructions);
            leaders.push(data.start);
            leaders.extend(names.within(data.start, data.end).iter().map(|n| n.0));
        }
        Self::of(instructions, leaders, names, stubs)
    }

    /// A body of instructions, cut at the leaders and wherever the flow ends.
    pub(crate) fn of(instructions: Vec<Instruction>, mut leaders: Vec<Va>, names: &Names, stubs: &Stubs) -> Self {
        for instruction in &instructions {
            match flow_of(instruction) {
                Flow::Jump(target) | Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) => {
                    leaders.extend([target, Va(instruction.next_ip())]);
                }
                Flow::IndirectJump | Flow::Return | Flow::Trap => leaders.push(Va(instruction.next_ip())),
                Flow::Call(target) if stubs.is_likely_no_return(target) => leaders.push(Va(instruction.next_ip())),
                _ => {}
            }
        }
        let Accesses { writes, reads, stores } = accesses(&instructions);
        let leaves = instructions.iter().map(leaves).collect();
        let has_frame_pointer = instructions.iter().any(sets_frame_pointer);
        let frame_escapes = instructions.iter().any(|i| leaks_frame(i, has_frame_pointer));
        let without_hole = instructions.chunk_by(|a, b| a.next_ip() == b.ip());
        let stretches = without_hole.map(|stretch| (Va(stretch[0].ip()), Va(stretch[stretch.len() - 1].next_ip()))).collect();
        let mut body = Body {
            num_own: instructions.len(),
            instructions,
            writes,
            reads,
            stores,
            leaves,
            blocks: Vec::new(),
            has_frame_pointer,
            frame_escapes,
            leaders,
            stretches,
            block_starts: Vec::new(),
            followed: Vec::new(),
            returned_to: Vec::new(),
        };
        body.cut(&[], names);
        body
    }

    /// Cuts the blocks anew, at more addresses; returns those that there were.
    pub(crate) fn cut(&mut self, more: &[Va], names: &Names) -> Vec<BodyBlock> {
        self.leaders.extend_from_slice(more);
        self.leaders.sort_unstable();
        self.leaders.dedup();
        // Both ascend. Units are not always adjacent, but each one's start is a leader.
        let mut instructions = (0u32..).zip(&self.instructions[..self.num_own]).peekable();
        let mut starts: Vec<u32> = Vec::with_capacity(self.leaders.len());
        for &leader in &self.leaders {
            while instructions.next_if(|(_, i)| i.ip() < leader.0).is_some() {}
            starts.extend(instructions.next_if(|(_, i)| i.ip() == leader.0).map(|(index, _)| index));
        }
        let ends = starts.iter().skip(1).copied().chain([self.num_own as u32]);
        let own = starts.iter().zip(ends).map(|(&first, end)| {
            let named_by = names.at(Va(self.instructions[first as usize].ip()));
            self.block(first, end, named_by)
        });
        let followed = self.followed.iter().map(|(_, callee)| self.block(callee.start, callee.end, NamedBy::default()));
        let blocks = own.chain(followed).collect();
        self.block_starts = starts.iter().map(|&first| Va(self.instructions[first as usize].ip())).collect();
        std::mem::replace(&mut self.blocks, blocks)
    }

    /// The first instructions of blocks, ascending, where control arrives in another way than before the last cut. To be asked once connected.
    pub(crate) fn changed_arrivals(&self, before: &[BodyBlock]) -> Vec<u32> {
        let mut known = before.iter().peekable();
        let is_changed = |block: &&BodyBlock| {
            while known.next_if(|old| old.first < block.first).is_some() {}
            let Some(old) = known.next_if(|old| old.first == block.first) else { return true };
            // Blocks are known by their ends, which a cut before them leaves where they are.
            let ends = block.preds.iter().map(|&pred| self.blocks[pred as usize].end);
            old.is_entry != block.is_entry || !ends.eq(old.preds.iter().map(|&pred| before[pred as usize].end))
        };
        self.blocks.iter().filter(is_changed).map(|block| block.first).collect()
    }

    fn block(&self, first: u32, end: u32, named_by: NamedBy) -> BodyBlock {
        let indices = first as usize..end as usize;
        let writes = self.writes[indices.clone()].iter().fold(0, |mask, w| mask | w);
        let leaves = self.leaves[indices.clone()].contains(&true);
        BodyBlock {
            first,
            end,
            preds: SmallVec::new(),
            preds_beyond_hub: None,
            succs: SmallVec::new(),
            named_by,
            writes,
            clobbers: if leaves { writes | CALLER_SAVED } else { writes },
            stores: leaves || self.stores[indices].contains(&true),
            is_entry: false,
        }
    }

    /// Fills in the predecessors. `table_edges` are the known targets of indirect jumps, as `(jump, target)`; a jump among
    /// `computed` may go to every address-taken block.
    pub(crate) fn connect(&mut self, stubs: &Stubs, unwind: &Unwind, table_edges: &[(Va, Va)], computed: &[Va]) {
        for block in &mut self.blocks {
            block.preds.clear();
        }
        for index in 0..self.block_starts.len() {
            let last_at = self.blocks[index].end as usize - 1;
            let last = self.instructions[last_at];
            if let Some(callee) = self.followed_from(last_at) {
                self.blocks[callee].preds.push(index as u32);
                self.add_edge(callee, Va(last.next_ip()));
                continue;
            }
            let next = Va(last.next_ip());
            match flow_of(&last) {
                Flow::Jump(target) => self.add_edge(index, target),
                Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) => {
                    self.add_edge(index, target);
                    self.add_fallthrough(index, next);
                }
                Flow::IndirectJump | Flow::Return | Flow::Trap => {}
                Flow::Call(target) if stubs.is_likely_no_return(target) && self.returned_to.binary_search(&next).is_err() => {}
                _ => self.add_fallthrough(index, next),
            }
        }
        for edges in table_edges.chunk_by(|a, b| a.0 == b.0) {
            if let Some(source) = self.block_containing(edges[0].0) {
                edges.iter().for_each(|&(_, target)| self.add_edge(source, target));
            }
        }
        let computed: Vec<u32> = computed.iter().filter_map(|&jump| Some(self.block_containing(jump)? as u32)).collect();
        for block in self.blocks.iter_mut().filter(|b| is_label(b.named_by)) {
            block.preds.extend_from_slice(&computed);
        }
        self.connect_landing_pads(unwind);
        self.disconnect_padding();
        self.mark_entries();
        for block in &mut self.blocks {
            block.succs.clear();
        }
        for target in 0..self.blocks.len() {
            let preds = std::mem::take(&mut self.blocks[target].preds);
            preds.iter().for_each(|&pred| self.blocks[pred as usize].succs.push(target as u32));
            self.blocks[target].preds = preds;
        }
        self.find_hub();
    }

    /// No-ops behind a jump or a return that nothing names and nothing leads to fill the room before an aligned label: control doesn't come to that label out of them.
    fn disconnect_padding(&mut self) {
        for index in 1..self.block_starts.len() {
            let block = &self.blocks[index];
            if !block.preds.is_empty() || block.named_by != NamedBy::default() {
                continue;
            }
            let (first, end) = (block.first as usize, block.end as usize);
            let before = &self.instructions[first - 1];
            let is_padding = matches!(flow_of(before), Flow::Jump(_) | Flow::IndirectJump | Flow::Return)
                && before.next_ip() == self.instructions[first].ip()
                && self.instructions[first..end].iter().all(is_nop);
            if is_padding && let Some(next) = self.block_at(Va(self.instructions[end - 1].next_ip())) {
                self.blocks[next].preds.retain(|pred| *pred as usize != index);
            }
        }
    }

    /// In an interpreter hundreds of jumps lead to the same hundreds of blocks. The predecessors that most of these share are the *hub*: a search that has been at all of
    /// them for one block need not look at each again for the next.
    fn find_hub(&mut self) {
        let mut lists: Vec<&[u32]> = self.blocks.iter().map(|block| &block.preds[..]).filter(|p| p.len() >= HUB_MIN).collect();
        lists.sort_unstable();
        let most = lists.chunk_by(|a, b| a == b).max_by_key(|equal| equal.len()).filter(|equal| equal.len() > 1);
        let hub = most.map(|equal| equal[0].to_vec()).unwrap_or_default();
        for block in &mut self.blocks {
            let is_member = !hub.is_empty() && hub.iter().all(|pred| block.preds.binary_search(pred).is_ok());
            let beyond = || block.preds.iter().copied().filter(|pred| hub.binary_search(pred).is_err()).collect();
            block.preds_beyond_hub = is_member.then(beyond);
        }
    }

    /// Whether a block is reached along the known edges only, with the values that hold at the ends of its predecessors. A landing pad is
    /// reached from the middle of them.
    pub(crate) fn is_entered_by_edges_only(&self, block: usize) -> bool {
        let data = &self.blocks[block];
        !data.is_entry && !data.preds.is_empty() && !data.named_by.contains(NamedBy::LANDING_PAD)
    }

    pub(crate) fn successors(&self, block: usize) -> &[u32] {
        &self.blocks[block].succs
    }

    /// Execution arrives from outside where a call, a pointer or a symbol names a block, and at the start of a unit that branches of
    /// other clusters only reach. If there is no such block, the first unit is entered by something unknown. Any other block without
    /// predecessors is reached through a table that is not known yet, or not at all.
    fn mark_entries(&mut self) {
        for block in &mut self.blocks {
            block.preds.sort();
            block.preds.dedup();
            let by = block.named_by;
            let is_tail_called = by.contains(NamedBy::BRANCH) && by.contains(NamedBy::UNWIND) && block.preds.is_empty();
            block.is_entry = by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL) || is_tail_called;
        }
        if !self.blocks.iter().any(|b| b.is_entry)
            && let Some(first) = self.blocks.iter_mut().find(|b| b.preds.is_empty())
        {
            first.is_entry = true;
        }
    }

    /// Execution comes to a landing pad from the calls of its call sites, with callee-saved registers as they were there.
    fn connect_landing_pads(&mut self, unwind: &Unwind) {
        if !self.blocks.iter().any(|b| b.named_by.contains(NamedBy::LANDING_PAD)) {
            return;
        }
        // The parts of a function may lie at both ends of the program: what is between them is none of it.
        let fdes = self.stretches.iter().flat_map(|&(low, high)| {
            let fdes = unwind.fdes.as_slice();
            let from = fdes.partition_point(|f| f.start < low);
            fdes[from..].iter().take_while(move |f| f.start < high)
        });
        for fde in fdes {
            let Some(lsda) = fde.lsda.and_then(|index| unwind.lsdas.get(index as usize)) else { continue };
            for site in &lsda.call_sites {
                let Some(pad) = site.landing_pad.and_then(|pad| self.block_at(pad)) else { continue };
                let own = &self.blocks[..self.block_starts.len()];
                let begin = own.partition_point(|b| self.instructions[b.end as usize - 1].ip() < site.start.0);
                let sources = (begin..own.len())
                    .take_while(|&i| self.instructions[self.blocks[i].first as usize].ip() < site.end.0)
                    .map(|i| i as u32);
                let sources: Vec<u32> = sources.collect();
                self.blocks[pad].preds.extend(sources);
            }
        }
    }

    /// Blocks that do something and that nothing known reaches, whole functions that nothing calls aside.
    fn orphans(&self) -> impl Iterator<Item = Va> {
        let is_orphan = |b: &&BodyBlock| {
            let instructions = &self.instructions[b.first as usize..b.end as usize];
            let is_named = b.named_by.intersects(NamedBy::LANDING_PAD | NamedBy::UNWIND) || is_label(b.named_by);
            b.preds.is_empty() && !b.is_entry && !is_named && !instructions.iter().all(is_nop)
        };
        self.blocks.iter().filter(is_orphan).map(|b| Va(self.instructions[b.first as usize].ip()))
    }

    /// Lets calls return that are followed by orphans, whatever was said of them. Says whether there are any.
    pub(crate) fn let_calls_return(&mut self) -> bool {
        let follows_call = |va: &Va| {
            let before = self.index_of(*va).and_then(|index| index.checked_sub(1)).map(|index| &self.instructions[index]);
            before.is_some_and(|i| Va(i.next_ip()) == *va && matches!(flow_of(i), Flow::Call(_)))
        };
        let more: Vec<Va> =
            self.orphans().filter(follows_call).filter(|va| self.returned_to.binary_search(va).is_err()).collect();
        self.returned_to.extend_from_slice(&more);
        self.returned_to.sort();
        !more.is_empty()
    }

    /// Lets calls return of which nothing is known but that some others did not. Says whether there are any.
    pub(crate) fn let_all_calls_return(&mut self, stubs: &Stubs) -> bool {
        let is_guess = |i: &&Instruction| matches!(flow_of(i), Flow::Call(target) if stubs.is_likely_no_return(target) && !stubs.is_no_return(target));
        let before = self.returned_to.len();
        self.returned_to.extend(self.instructions.iter().filter(is_guess).map(|i| Va(i.next_ip())));
        self.returned_to.sort();
        self.returned_to.dedup();
        self.returned_to.len() > before
    }

    /// The blocks whose address is taken: each computed jump leads to all of them.
    pub(crate) fn num_labels(&self) -> usize {
        self.blocks.iter().filter(|block| is_label(block.named_by)).count()
    }

    fn add_edge(&mut self, source: usize, target: Va) {
        if let Some(target) = self.block_at(target) {
            self.blocks[target].preds.push(source as u32);
        }
    }

    /// An edge to where a block ends: nearly always the block behind it.
    fn add_fallthrough(&mut self, source: usize, next: Va) {
        match self.block_starts.get(source + 1) == Some(&next) {
            true => self.blocks[source + 1].preds.push(source as u32),
            false => self.add_edge(source, next),
        }
    }

    pub(crate) fn index_of(&self, va: Va) -> Option<usize> {
        self.instructions[..self.num_own].binary_search_by_key(&va.0, |i| i.ip()).ok()
    }
    pub(crate) fn block_of(&self, index: usize) -> usize {
        self.blocks.partition_point(|b| b.first as usize <= index) - 1
    }
    pub(crate) fn block_at(&self, va: Va) -> Option<usize> {
        self.block_starts.binary_search(&va).ok()
    }
    fn block_containing(&self, va: Va) -> Option<usize> {
        self.index_of(va).map(|index| self.block_of(index))
    }
}

/// Whether a block is a label whose address is taken. The start of a unit is a function: a jump there is a call, with its arguments anew.
fn is_label(by: NamedBy) -> bool {
    by.intersects(NamedBy::ADDRESS | NamedBy::SLOT) && !by.contains(NamedBy::UNWIND)
}

/// Whether an instruction makes `rbp` point into the frame.
pub(crate) fn sets_frame_pointer(instruction: &Instruction) -> bool {
    let sets_rbp =
        instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RBP;
    sets_rbp
        && match instruction.mnemonic() {
            Mnemonic::Mov => instruction.op1_kind() == OpKind::Register && instruction.op1_register() == Register::RSP,
            Mnemonic::Lea => instruction.memory_base() == Register::RSP,
            _ => false,
        }
}

/// Whether an instruction takes an address of the frame for more than keeping the frame.
fn leaks_frame(instruction: &Instruction, has_frame_pointer: bool) -> bool {
    let is_frame = |register: Register| {
        let register = register.full_register();
        register == Register::RSP || register == Register::RBP && has_frame_pointer
    };
    let is_kept =
        instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register && is_frame(instruction.op0_register());
    match instruction.mnemonic() {
        Mnemonic::Lea => !is_kept && (is_frame(instruction.memory_base()) || is_frame(instruction.memory_index())),
        Mnemonic::Push => instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP,
        Mnemonic::Pop | Mnemonic::Leave | Mnemonic::Enter | Mnemonic::Cmp | Mnemonic::Test => false,
        _ if is_kept => false,
        _ => (0..instruction.op_count())
            .any(|operand| instruction.op_kind(operand) == OpKind::Register && is_frame(instruction.op_register(operand))),
    }
}

fn leaves(instruction: &Instruction) -> bool {
    matches!(flow_of(instruction), Flow::Call(_) | Flow::IndirectCall) || instruction.mnemonic() == Mnemonic::Syscall
}

/// What each instruction does to registers and memory.
struct Accesses {
    writes: Vec<RegisterMask>,
    reads: Vec<RegisterMask>,
    stores: Vec<bool>,
}

fn accesses(instructions: &[Instruction]) -> Accesses {
    let mut factory = InstructionInfoFactory::new();
    let len = instructions.len();
    let mut result =
        Accesses { writes: Vec::with_capacity(len), reads: Vec::with_capacity(len), stores: Vec::with_capacity(len) };
    for instruction in instructions {
        let info = factory.info(instruction);
        let is_write = |access: OpAccess| !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        let (mut writes, mut reads) = (0, 0);
        for used in info.used_registers() {
            let Some(number) = general(used.register()) else { continue };
            let is_read = !matches!(used.access(), OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess);
            writes |= u16::from(is_write(used.access())) << number;
            reads |= u16::from(is_read) << number;
        }
        result.writes.push(writes);
        result.reads.push(reads);
        result.stores.push(info.used_memory().iter().any(|used| is_write(used.access())));
    }
    result
}
