//! The part of a profile file that says what its counters count.
//!
//! Function by function: name, content hash, size, and for each counter and recorded call its place as an offset from the
//! function's start. Offsets run over the function's ranges in one fixed order (the primary first, the others ascending), so
//! that they are the same wherever the linker puts a `.cold` part. Counters are numbered through in the order they are listed.
//!
//! Entry addresses have a fixed width: they are known last, when the instrumented image is laid out, and the image contains the
//! descriptor; so its length may not depend on them.

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{CodeRange, EdgeKind, Program};
use lifter::{Image, Va};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::header::{HAS_OUTLINES, HAS_PARTS, HEADER_BYTES, Header};
use super::outline;
use super::varint::{Reader, put, put_signed, put_string};
use crate::error::{Error, Result};
use crate::instrument::{CounterPlan, CounterSite};
use crate::outline::{FuncOutline, Outline};

/// The site of a counter; offsets are of blocks, from the function's start.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    Block { offset: u32 },
    Edge { source: u32, is_taken: bool, target: u32 },
}

/// A recorded call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CallDescriptor {
    /// Of its block, from the function's start.
    pub block_offset: u32,
    /// Of the instruction, from the block's start.
    pub offset: u32,
    pub len: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuncDescriptor {
    /// Empty where the function has no symbol.
    pub name: String,
    pub content_hash: u64,
    pub size: u64,
    /// Of the entry block, from the function's start.
    pub entry_offset: u32,
    /// Its address in the instrumented image, relative to the image's lowest.
    pub entry: Option<u32>,
    pub sites: Vec<Site>,
    pub calls: Vec<CallDescriptor>,
    /// What a rebuilt program is recognized by; empty in a file that was made without.
    pub outline: FuncOutline,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub identity: [u64; 2],
    /// All functions of the program, pinned ones too (they may be called); ascending by id.
    pub funcs: Vec<FuncDescriptor>,
}

/// What a file is told by: its build-id, if it has one, and the bytes of its executable segments with their addresses. Stripping
/// changes neither.
pub fn identity(image: &Image<'_>) -> [u64; 2] {
    let mut hash = Xxh3::new();
    if let Some((offset, len)) = image.build_id {
        let start = usize::try_from(offset.0).unwrap_or(usize::MAX);
        hash.update(image.bytes.get(start..start.saturating_add(len)).unwrap_or(&[]));
    }
    for segment in image.loads().filter(|s| s.is_executable()) {
        hash.update(&segment.p_vaddr.0.to_le_bytes());
        hash.update(image.read(segment.p_vaddr, segment.p_filesz as usize).unwrap_or(&[]));
    }
    let digest = hash.digest128();
    [digest as u64, (digest >> 64) as u64]
}

/// The parts of a function in the order in which offsets run over them: the primary first, the others ascending; address and length in bytes.
pub(crate) fn parts_of(program: &Program, func: Func) -> Vec<(Va, u32)> {
    ranges_of(program, func).map(|range| (range.start, (range.end - range.start) as u32)).collect()
}

fn ranges_of(program: &Program, func: Func) -> impl Iterator<Item = &CodeRange> {
    let data = &program.funcs[func];
    let primary = data.primary_range as usize;
    let others = data.ranges.as_usize().filter(move |&range| range != primary);
    let first = std::iter::once(primary).filter(|range| data.ranges.as_usize().contains(range));
    first.chain(others).map(|range| &program.ranges[range])
}

/// The offset of each block of a function from the function's start, by position in the function.
pub(crate) fn block_offsets(program: &Program, func: Func) -> Vec<u32> {
    let mut starts: Vec<(Va, u64)> = Vec::new();
    let mut next = 0;
    for range in ranges_of(program, func) {
        starts.push((range.start, next));
        next += range.end - range.start;
    }
    let offset_of = |block: Block| {
        let block = &program.blocks[block];
        let range = program.ranges[block.range as usize].start;
        let start = starts.iter().find(|part| part.0 == range).map_or(0, |part| part.1);
        (start + (block.start - range)) as u32
    };
    program.funcs[func].blocks.iter().map(offset_of).collect()
}

/// The name of a function, empty without a symbol.
pub(crate) fn name_of<'a>(image: &Image<'a>, program: &Program, func: Func) -> &'a str {
    program.funcs[func].symbol.and_then(|symbol| image.symbols.get(symbol)).map_or("", |symbol| symbol.name)
}

impl Descriptor {
    /// Describes a plan; entry addresses are still unknown. The plan's order must be that of `plan_counters`.
    pub fn build(image: &Image<'_>, program: &Program, plan: &CounterPlan) -> Self {
        let mut outlines = Outline::build(image, program).funcs.into_iter();
        let source_of = |site: &CounterSite| match *site {
            CounterSite::Block(block) => block,
            CounterSite::Edge(index) => program.edges[index as usize].source,
        };
        debug_assert!(plan.counters.is_sorted_by_key(|site| program.func_of(source_of(site))));
        debug_assert!(plan.calls.is_sorted_by_key(|call| program.func_of(call.block)));
        let (mut counters, mut calls) = (plan.counters.as_slice(), plan.calls.as_slice());
        let describe = |func: Func| {
            let (own_counters, rest) = counters.split_at(counters.partition_point(|s| program.func_of(source_of(s)) <= func));
            counters = rest;
            let (own_calls, rest) = calls.split_at(calls.partition_point(|c| program.func_of(c.block) <= func));
            calls = rest;
            let data = &program.funcs[func];
            let offsets = block_offsets(program, func);
            let first = data.blocks.as_usize().start;
            let offset_of = |block: Block| offsets.get(block.index().wrapping_sub(first)).copied().unwrap_or(0);
            let site_of = |site: &CounterSite| match *site {
                CounterSite::Block(block) => Site::Block { offset: offset_of(block) },
                CounterSite::Edge(index) => {
                    let edge = program.edges[index as usize];
                    let is_taken = edge.kind != EdgeKind::Fallthrough;
                    Site::Edge { source: offset_of(edge.source), is_taken, target: offset_of(edge.target) }
                }
            };
            let outline = outlines.next().unwrap_or_default();
            FuncDescriptor {
                name: outline.name.clone(),
                content_hash: data.content_hash,
                size: program.func_size(func),
                entry_offset: offset_of(data.entry),
                entry: None,
                sites: own_counters.iter().map(site_of).collect(),
                calls: own_calls
                    .iter()
                    .map(|c| CallDescriptor { block_offset: offset_of(c.block), offset: c.offset, len: c.len })
                    .collect(),
                outline,
            }
        };
        Descriptor { identity: identity(image), funcs: program.funcs.keys().map(describe).collect() }
    }

    /// Sets where each function's entry lies in the instrumented image, by function id. The encoded length stays the same.
    pub fn set_entries(&mut self, image_low: Va, entry_of: impl Fn(Func) -> Option<Va>) {
        for (index, func) in self.funcs.iter_mut().enumerate() {
            func.entry = entry_of(Func::new(index)).and_then(|va| u32::try_from(va.0.checked_sub(image_low.0)?).ok());
        }
    }

    /// What the file says of the program that it was made from; `None` where it says nothing.
    pub fn outline(&self) -> Option<Outline> {
        let funcs: Vec<FuncOutline> = self.funcs.iter().map(|f| f.outline.clone()).collect();
        funcs.iter().any(|f| !f.blocks.is_empty()).then_some(Outline { funcs })
    }

    /// Whether functions were cut like those of a program, as far as it says.
    pub(crate) fn is_cut_like(&self, program: &Program) -> bool {
        let is_same = |(func, known): (Func, &FuncDescriptor)| {
            known.outline.parts.is_empty()
                || known.outline.parts == parts_of(program, func)
                    && known.outline.blocks.len() == program.funcs[func].blocks.len()
        };
        self.funcs.len() == program.funcs.len() && program.funcs.keys().zip(&self.funcs).all(is_same)
    }

    pub fn num_counters(&self) -> usize {
        self.funcs.iter().map(|f| f.sites.len()).sum()
    }
    pub fn num_calls(&self) -> usize {
        self.funcs.iter().map(|f| f.calls.len()).sum()
    }

    /// The header, and the header and descriptor as bytes: what the instrumented image holds and a process begins its file with.
    pub fn encode(&self) -> (Header, Vec<u8>) {
        let body = self.encode_body(true);
        let plan_hash = xxh3_64(&self.encode_body(false));
        let header = Header::new(self.identity, plan_hash, &body, self.num_counters() as u64, self.num_calls() as u64);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&body);
        (header, bytes)
    }

    fn encode_body(&self, has_entries: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.funcs.len() * 64);
        put(&mut bytes, self.funcs.len() as u64);
        for func in &self.funcs {
            put_string(&mut bytes, &func.name);
            bytes.extend_from_slice(&func.content_hash.to_le_bytes());
            let entry = func.entry.filter(|_| has_entries).map_or(0, |entry| entry.saturating_add(1));
            bytes.extend_from_slice(&entry.to_le_bytes());
            put(&mut bytes, func.size);
            put(&mut bytes, u64::from(func.entry_offset));
            put(&mut bytes, func.sites.len() as u64);
            let mut last = 0;
            func.sites.iter().for_each(|site| put_site(&mut bytes, site, &mut last));
            put(&mut bytes, func.calls.len() as u64);
            for call in &func.calls {
                put(&mut bytes, u64::from(call.block_offset));
                put(&mut bytes, u64::from(call.offset));
                bytes.push(call.len);
            }
            outline::put(&mut bytes, &func.outline);
        }
        let mut last = 0;
        self.funcs.iter().for_each(|func| outline::put_parts(&mut bytes, &func.outline, &mut last));
        bytes
    }

    pub fn decode(header: &Header, file: &[u8]) -> Result<Self> {
        let body = super::section(file, HEADER_BYTES, header.descriptor_len, "descriptor")?;
        if xxh3_64(body) != header.descriptor_hash {
            return Err(Error::malformed("descriptor", "its hash is not the one in the header"));
        }
        let mut reader = Reader::new(body);
        let num_funcs = reader.count()?;
        let mut funcs = Vec::new();
        for _ in 0..num_funcs {
            let mut func = read_func(&mut reader)?;
            if header.flags & HAS_OUTLINES != 0 {
                func.outline = outline::read(&mut reader, &func, num_funcs)?;
            }
            funcs.push(func);
        }
        if header.flags & HAS_PARTS != 0 {
            let mut last = 0;
            for func in &mut funcs {
                outline::read_parts(&mut reader, &mut func.outline, &mut last)?;
            }
        }
        let descriptor = Descriptor { identity: header.identity, funcs };
        let is_complete = reader.is_empty()
            && descriptor.num_counters() as u64 == header.num_counters
            && descriptor.num_calls() as u64 == header.num_calls;
        is_complete.then_some(descriptor).ok_or_else(|| Error::malformed("descriptor", "it is not what the header says"))
    }
}

/// A site as its kind and the distance of its block from the last site's; an edge's target as its distance from the source.
fn put_site(bytes: &mut Vec<u8>, site: &Site, last: &mut i64) {
    let (kind, offset) = match *site {
        Site::Block { offset } => (0, offset),
        Site::Edge { source, is_taken, .. } => (1 + u64::from(is_taken), source),
    };
    let delta = i64::from(offset) - *last;
    *last = i64::from(offset);
    put(bytes, kind);
    put_signed(bytes, delta);
    if let Site::Edge { source, target, .. } = *site {
        put_signed(bytes, i64::from(target) - i64::from(source));
    }
}

fn read_site(reader: &mut Reader<'_>, last: &mut i64) -> Result<Site> {
    let misplaced = || Error::malformed("descriptor", "a counter lies outside its function");
    let offset_from = |base: i64, delta: i64| base.checked_add(delta).and_then(|o| u32::try_from(o).ok()).ok_or_else(misplaced);
    let kind = reader.number()?;
    let offset = offset_from(*last, reader.signed()?)?;
    *last = i64::from(offset);
    match kind {
        0 => Ok(Site::Block { offset }),
        1 | 2 => {
            let target = offset_from(*last, reader.signed()?)?;
            Ok(Site::Edge { source: offset, is_taken: kind == 2, target })
        }
        _ => Err(Error::malformed("descriptor", format!("unknown kind of counter {kind}"))),
    }
}

fn read_func(reader: &mut Reader<'_>) -> Result<FuncDescriptor> {
    let name = reader.string()?.to_owned();
    let content_hash = reader.u64()?;
    let entry = reader.u32()?.checked_sub(1);
    let size = reader.number()?;
    let entry_offset = reader.small()?;
    let num_sites = reader.count()?;
    let mut last = 0;
    let sites = (0..num_sites).map(|_| read_site(reader, &mut last)).collect::<Result<_>>()?;
    let num_calls = reader.count()?;
    let mut read_call = || Ok(CallDescriptor { block_offset: reader.small()?, offset: reader.small()?, len: reader.take(1)?[0] });
    let calls = (0..num_calls).map(|_| read_call()).collect::<Result<_>>()?;
    Ok(FuncDescriptor { name, content_hash, size, entry_offset, entry, sites, calls, outline: FuncOutline::default() })
}
