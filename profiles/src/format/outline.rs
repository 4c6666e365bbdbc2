//! A function's outline as bytes.
//!
//! Name and content hash are in the descriptor already. A block takes some fifteen bytes: its distance from the one before it, three
//! hashes, its length, and two flags; an edge three, a call two. Where the parts of functions are follows behind all of them, some four bytes for each. Numbers of blocks and functions are checked when they are read.

use lifter::Va;
use lifter::ir::EdgeKind;

use super::descriptor::FuncDescriptor;
use super::varint::{self, Reader, put_signed};
use crate::error::{Error, Result};
use crate::outline::{BlockOutline, EdgeOutline, FuncOutline};

const ARRIVES: u8 = 1;
const DEPARTS: u8 = 2;

pub(super) fn put(bytes: &mut Vec<u8>, outline: &FuncOutline) {
    varint::put(bytes, outline.blocks.len() as u64);
    let mut last = 0;
    for block in &outline.blocks {
        put_signed(bytes, i64::from(block.offset) - last);
        last = i64::from(block.offset);
        for hash in [block.strong, block.middle, block.loose] {
            bytes.extend_from_slice(&hash.to_le_bytes());
        }
        varint::put(bytes, u64::from(block.num_insts));
        bytes.push(if block.may_arrive { ARRIVES } else { 0 } | if block.may_depart { DEPARTS } else { 0 });
    }
    if outline.blocks.is_empty() {
        return;
    }
    varint::put(bytes, u64::from(outline.entry));
    varint::put(bytes, outline.edges.len() as u64);
    let mut last = 0;
    for edge in &outline.edges {
        varint::put(bytes, u64::from(edge.source.wrapping_sub(last)));
        last = edge.source;
        put_signed(bytes, i64::from(edge.target) - i64::from(edge.source));
        bytes.push(edge.kind as u8);
    }
    varint::put(bytes, outline.calls.len() as u64);
    for &(block, callee) in &outline.calls {
        varint::put(bytes, u64::from(block));
        varint::put(bytes, u64::from(callee));
    }
}

pub(super) fn read(reader: &mut Reader<'_>, func: &FuncDescriptor, num_funcs: usize) -> Result<FuncOutline> {
    let num_blocks = reader.count()?;
    if num_blocks == 0 {
        return Ok(FuncOutline::default());
    }
    let mut outline = FuncOutline { name: func.name.clone(), content_hash: func.content_hash, ..FuncOutline::default() };
    let mut last = 0;
    for _ in 0..num_blocks {
        let block = read_block(reader, last)?;
        last = i64::from(block.offset);
        outline.blocks.push(block);
    }
    let numbered = |value: u64, limit: usize| match u32::try_from(value) {
        Ok(number) if (number as usize) < limit => Ok(number),
        _ => Err(Error::malformed("descriptor", "an outline names a block or function that is not there")),
    };
    outline.entry = numbered(reader.number()?, num_blocks)?;
    let mut source = 0u64;
    for _ in 0..reader.count()? {
        source = source.saturating_add(reader.number()?);
        let target = (source as i64).checked_add(reader.signed()?).and_then(|t| u64::try_from(t).ok()).unwrap_or(u64::MAX);
        let kind = match reader.take(1)?[0] {
            0 => EdgeKind::Fallthrough,
            1 => EdgeKind::Taken,
            2 => EdgeKind::Table,
            3 => EdgeKind::Computed,
            _ => return Err(Error::malformed("descriptor", "an outline has an edge of an unknown kind")),
        };
        outline.edges.push(EdgeOutline { source: numbered(source, num_blocks)?, target: numbered(target, num_blocks)?, kind });
    }
    let mut last = 0;
    for _ in 0..reader.count()? {
        let block = numbered(reader.number()?, num_blocks)?;
        if block < last {
            return Err(Error::malformed("descriptor", "the calls of an outline are out of order"));
        }
        last = block;
        outline.calls.push((block, numbered(reader.number()?, num_funcs)?));
    }
    Ok(outline)
}

/// A function's parts: how many, and of each the distance from the end of the last one in the file, and the length.
pub(super) fn put_parts(bytes: &mut Vec<u8>, outline: &FuncOutline, last: &mut u64) {
    varint::put(bytes, outline.parts.len() as u64);
    for &(start, len) in &outline.parts {
        put_signed(bytes, start.0.wrapping_sub(*last).cast_signed());
        varint::put(bytes, u64::from(len));
        *last = start.0.wrapping_add(u64::from(len));
    }
}

pub(super) fn read_parts(reader: &mut Reader<'_>, outline: &mut FuncOutline, last: &mut u64) -> Result<()> {
    for _ in 0..reader.count()? {
        let start = last.wrapping_add_signed(reader.signed()?);
        let len = reader.small()?;
        outline.parts.push((Va(start), len));
        *last = start.wrapping_add(u64::from(len));
    }
    Ok(())
}

fn read_block(reader: &mut Reader<'_>, last: i64) -> Result<BlockOutline> {
    let offset = last.checked_add(reader.signed()?).and_then(|offset| u32::try_from(offset).ok());
    let offset = offset.ok_or_else(|| Error::malformed("descriptor", "an outline has a block outside its function"))?;
    let (strong, middle, loose) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let num_insts = reader.small()?;
    let flags = reader.take(1)?[0];
    let (may_arrive, may_depart) = (flags & ARRIVES != 0, flags & DEPARTS != 0);
    Ok(BlockOutline { offset, strong, middle, loose, num_insts, may_arrive, may_depart })
}
