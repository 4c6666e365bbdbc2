//! Instrumentation as edits and a payload: what `profiles` plans, put into the output.
//!
//! **Method.** Counters become insertions at block starts (behind an `endbr64`, and behind the first instruction of a function that is known by its faults) and on edges; recorded calls become insertions before the call.
//! Where the flags that an increment writes are live they are saved around it. The payload behind the image holds the start-up stub, the recording
//! routine, the path of the profile file and the descriptor that makes the file self-contained; the counters themselves lie in zero-filled
//! memory behind the data, which the stub replaces by the mapped file.
//!
//! **Where it starts.** A program enters the stub in place of its own entry point. Nothing ever enters a library there; what a dynamic linker calls first when it has
//! loaded and relocated one is what `DT_INIT` names, then the words of `DT_INIT_ARRAY` (gABI chapter 5, "Initialization and Termination Functions"). So there the stub takes the place of the
//! former, or of the first of the latter, and goes on to what it replaced, with all registers as they were. What runs of a library before, such as the choice of an `IFUNC`, counts into memory that the
//! stub then replaces, and is lost. `dlclose` unmaps all between the library's first and last address, the counters with it; the next `dlopen` maps the file again.
//!
//! **Unwinding.** A snippet has the row of the instruction that follows it, told for a lower stack pointer in the few instructions that move that (saving flags, recording a call): a profiler that samples the program
//! unwinds from there too. Where the frame address is computed, they have the row itself, which is off. The recording routine has no unwind entry: who unwinds from there finds the end of the stack.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use analysis::flags::FlagLiveness;
use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::FileKind;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, Program, RefTarget};
use lifter::x86::decode_block;
use object::elf;
use profiles::runtime::{COUNTER_LEN, COUNTER_WITH_FLAGS_LEN};
use profiles::{
    CounterPlan, CounterSite, Descriptor, RuntimeLayout, build_runtime, call_site_snippet, counter_snippet, runtime_len,
};

use crate::edit::{BlockInsertion, EdgeInsertion, EditPlan, Snippet};
use crate::error::{Error, Result};
use crate::relink::{Addresses, BuiltPayload, Payload};

/// Bytes of an `endbr64`, which has to stay first.
const ENDBR_LEN: u32 = 4;

/// A recorded call: its instruction, and the place that a rip-relative operand names.
#[derive(Clone, Debug)]
struct RecordedCall {
    instruction: iced_x86::Instruction,
    rip_target: Option<Va>,
}

/// How an instrumented file comes to run its start-up stub.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// In place of the entry point.
    Entry,
    /// In place of what `DT_INIT` names.
    Init(Va),
    /// In place of what the first word of `DT_INIT_ARRAY` names; the word is at this address.
    InitArray(Va),
}

impl Start {
    pub fn of(image: &Image<'_>) -> Result<Self> {
        let value = |tag: u32| image.dynamic_value(tag);
        let is_pie = value(elf::DT_FLAGS_1).unwrap_or(0) & u64::from(elf::DF_1_PIE) != 0;
        // A library may have an entry point too, to say its version (libc does), but then it has a name.
        let is_library = match image.kind {
            FileKind::SharedObject => true,
            FileKind::PieExecutable => value(elf::DT_SONAME).is_some() && !is_pie,
            _ => false,
        };
        if !is_library {
            return Ok(Start::Entry);
        }
        let has_array = value(elf::DT_INIT_ARRAYSZ).unwrap_or(0) >= 8;
        match (value(elf::DT_INIT), value(elf::DT_INIT_ARRAY).filter(|_| has_array)) {
            (Some(init), _) if init != 0 => Ok(Start::Init(Va(init))),
            (_, Some(array)) => Ok(Start::InitArray(Va(array))),
            _ => Err(Error::NeverInitialized),
        }
    }

    /// What it takes the place of.
    fn original(self, image: &Image<'_>, program: &Program, addresses: &Addresses<'_>) -> Result<Va> {
        let moved = |va: Va| program.block_at(va).map_or(va, |block| addresses.block(block));
        match self {
            Start::Entry => Ok(moved(image.e_entry)),
            Start::Init(init) => Ok(moved(init)),
            Start::InitArray(at) => {
                let slot = program.slots.iter().find(|slot| slot.at == at);
                let slot = slot.ok_or_else(|| Error::Instrument(format!("the word at {at} names no function")))?;
                Ok(addresses.block(slot.target))
            }
        }
    }
}

/// All that makes a program count.
#[derive(Debug)]
pub struct Instrumentation<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    plan: CounterPlan,
    calls: Vec<RecordedCall>,
    start: Start,
    flags: FlagLiveness,
    path: Vec<u8>,
    descriptor: Descriptor,
    layout: Option<RuntimeLayout>,
}

impl<'a> Instrumentation<'a> {
    /// Chooses what is counted; the program will count into `profile`, an absolute path.
    pub fn plan(image: &'a Image<'a>, program: &'a Program, profile: &Path) -> Result<Self> {
        let path = profile.as_os_str().as_bytes().to_vec();
        if path.contains(&0) {
            return Err(Error::Instrument("the profile's path holds a NUL byte".into()));
        }
        let start = Start::of(image)?;
        let mut plan = profiles::plan_counters(image, program);
        let mut calls = Vec::with_capacity(plan.calls.len());
        plan.calls.retain(|call| match recorded_call(image, program, call) {
            Some(recorded) => {
                calls.push(recorded);
                true
            }
            None => false,
        });
        let descriptor = Descriptor::build(image, program, &plan);
        let flags = FlagLiveness::compute(image, program);
        Ok(Instrumentation { image, program, plan, calls, start, flags, path, descriptor, layout: None })
    }

    /// What is inserted where.
    pub fn edits(&self) -> Result<EditPlan> {
        let mut edits = EditPlan::default();
        for (index, &site) in self.plan.counters.iter().enumerate() {
            let index = index as u32;
            match site {
                CounterSite::Block(block) => {
                    let (offset, uses_flags) = self.offset_of_counter(block);
                    let (len, snippet) = counter(index, uses_flags || self.flags.live_at_block_start(block));
                    edits.blocks.push(BlockInsertion { block, offset, len, snippet });
                }
                CounterSite::Edge(edge) => {
                    let (len, snippet) = counter(index, self.flags.live_on_edge(edge));
                    edits.edges.push(EdgeInsertion { edge, len, snippet });
                }
            }
        }
        for (site, (call, recorded)) in self.plan.calls.iter().zip(&self.calls).enumerate() {
            // The length doesn't depend on addresses; these only have to be near enough to each other to be encoded.
            let near = self.image.low();
            let snippet =
                call_site_snippet(&recorded.instruction, recorded.rip_target.map(|_| near), 0, near, near).map_err(failed)?;
            edits.blocks.push(BlockInsertion {
                block: call.block,
                offset: call.offset,
                len: snippet.len() as u32,
                snippet: Snippet::RecordCall { site: site as u32 },
            });
        }
        edits.blocks.sort_by_key(|i| (i.block, i.offset));
        edits.edges.sort_by_key(|i| i.edge);
        Ok(edits)
    }

    /// Where in a block its executions are counted, and whether what comes before that may have left flags behind.
    fn offset_of_counter(&self, block: Block) -> (u32, bool) {
        let data = &self.program.blocks[block];
        let offset = if data.flags.contains(BlockFlags::ENDBR) { ENDBR_LEN } else { 0 };
        if !data.flags.contains(BlockFlags::KNOWN_BY_FAULT) {
            return (offset, false);
        }
        let first =
            decode_block(self.image, self.program, block).into_iter().find(|i| i.ip() == data.start.0 + u64::from(offset));
        let first = first.filter(|first| first.next_ip() < data.start.0 + u64::from(data.body_len));
        first.map_or((offset, false), |first| (offset + first.len() as u32, first.rflags_modified() != 0))
    }
}

fn counter(index: u32, preserve_flags: bool) -> (u32, Snippet) {
    let len = if preserve_flags { COUNTER_WITH_FLAGS_LEN } else { COUNTER_LEN };
    (len as u32, Snippet::Counter { index, preserve_flags })
}

fn failed(error: profiles::Error) -> Error {
    Error::Instrument(error.to_string())
}

/// The call's instruction; `None` where its operand names code that moves, which no call of a compiler does.
fn recorded_call(image: &Image<'_>, program: &Program, call: &profiles::CallSite) -> Option<RecordedCall> {
    let start = program.blocks[call.block].start;
    let instruction =
        decode_block(image, program, call.block).into_iter().find(|i| i.ip() == start.0 + u64::from(call.offset))?;
    let rip_target = if instruction.is_ip_rel_memory_operand() {
        let within = call.offset..call.offset + u32::from(call.len);
        match program.block_refs(call.block).iter().find(|r| within.contains(&r.offset))?.target {
            RefTarget::Fixed(va) => Some(va),
            RefTarget::Block(_) | RefTarget::Table(_) | RefTarget::UnwindTable(_) => return None,
        }
    } else {
        None
    };
    Some(RecordedCall { instruction, rip_target })
}

impl Payload for Instrumentation<'_> {
    fn reserved(&self) -> u64 {
        self.descriptor.encode().0.counters_len()
    }

    fn build(&mut self, at: Va, reserved_at: Va, addresses: &Addresses<'_>) -> Result<BuiltPayload> {
        let image_low = self.image.low();
        let program = self.program;
        self.descriptor.set_entries(image_low, |func| Some(addresses.block(program.funcs[func].entry)));
        let (header, blob) = self.descriptor.encode();
        let header_blob_at = at + (runtime_len(self.path.len()) as u64).next_multiple_of(8);
        let original_entry = self.start.original(self.image, program, addresses)?;
        let layout = RuntimeLayout {
            at,
            header_blob_at,
            counters_at: reserved_at,
            image_low,
            image_high: header_blob_at + blob.len() as u64,
            original_entry,
        };
        let mut bytes = build_runtime(&layout, &header, &self.path).map_err(failed)?;
        bytes.resize((header_blob_at - at) as usize, 0);
        bytes.extend_from_slice(&blob);
        self.layout = Some(layout);
        Ok(BuiltPayload { bytes, entry: at, start: self.start })
    }

    fn snippet(&self, snippet: Snippet, at: Va) -> Result<Vec<u8>> {
        let layout = self.layout.as_ref().ok_or_else(|| Error::Inconsistent("a snippet before its runtime".into()))?;
        match snippet {
            Snippet::Counter { index, preserve_flags } => {
                counter_snippet(layout.counter_at(index), at, preserve_flags).map_err(failed)
            }
            Snippet::RecordCall { site } => {
                let call = &self.calls[site as usize];
                call_site_snippet(&call.instruction, call.rip_target, site, layout.record_at(), at).map_err(failed)
            }
        }
    }
}
