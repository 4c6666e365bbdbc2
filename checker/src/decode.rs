//! Decoded code by address: length, kind and position of a rip-relative displacement.
//!
//! `capstone` gives lengths and instruction ids; its detail mode is several times slower and is wrong about displacement
//! positions of some VEX and EVEX encodings, so [`Shape`] reads prefixes, opcode and ModRM itself (Intel SDM vol. 2, chapter 2 and appendix A).
//! What is encoded alike is asked for once ([`memo`]). Results are cached, by byte of code ([`numbered`]).

mod memo;
mod numbered;

use std::sync::Arc;

use capstone::arch::x86::X86Insn;
use capstone::prelude::*;
use rayon::prelude::*;

use crate::error::FileError;
use crate::image::Area;
use memo::Beginning;
pub(crate) use memo::Memo;
use numbered::{Known, Numbered};

/// Of `endbr64`, in bytes.
pub(crate) const MARK_LEN: u64 = 4;

pub(crate) const UD2: [u8; 2] = [0x0f, 0x0b];

/// What an instruction does to the flow of control.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Plain,
    /// Of the recommended encodings: no operand that is read matters.
    Nop,
    Jump,
    IndirectJump,
    /// `jcc`.
    Branch,
    /// `loop`, `jrcxz` and their relatives: 8 bits of reach, no inverse. `xbegin` too.
    Loop,
    Call,
    IndirectCall,
    Return,
    /// `ud2`, `hlt`: nothing follows.
    Stop,
    /// `int3`: filler, or a trap that returns.
    Trap,
    /// `lea`, which makes an address without reading it.
    Lea,
    EndBranch,
}

const KINDS: [Kind; 13] = [
    Kind::Plain,
    Kind::Nop,
    Kind::Jump,
    Kind::IndirectJump,
    Kind::Branch,
    Kind::Loop,
    Kind::Call,
    Kind::IndirectCall,
    Kind::Return,
    Kind::Stop,
    Kind::Trap,
    Kind::Lea,
    Kind::EndBranch,
];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inst {
    pub(crate) len: u8,
    pub(crate) kind: Kind,
    /// Offset of the displacement of a rip-relative operand, 0 if there is none.
    pub(crate) disp: u8,
}

impl Inst {
    /// Whether the instruction after it is not reached by falling through.
    pub(crate) fn ends_flow(self) -> bool {
        matches!(self.kind, Kind::Jump | Kind::IndirectJump | Kind::Return | Kind::Stop)
    }
}

const UNKNOWN: u16 = 0;
const INVALID: u16 = u16::MAX;

/// All executable bytes of a file, numbered from 0 without gaps.
pub(crate) struct Code<'a> {
    areas: Vec<Area<'a>>,
    /// Index of each area's first byte.
    bases: Vec<u32>,
    /// The largest area, and the index of its first byte: nearly all code is in it.
    main: Area<'a>,
    main_base: usize,
    cache: Numbered,
    memo: Arc<Memo>,
}

/// A disassembler of one thread.
pub(crate) struct Decoder(Capstone);

impl Decoder {
    pub(crate) fn new() -> Result<Self, FileError> {
        let engine = Capstone::new().x86().mode(arch::x86::ArchMode::Mode64).build();
        engine.map(Self).map_err(|error| FileError::Disassembler(error.to_string()))
    }
}

impl<'a> Code<'a> {
    pub(crate) fn new(areas: &[Area<'a>], memo: Arc<Memo>) -> Self {
        let mut bases = Vec::with_capacity(areas.len());
        let mut size = 0u32;
        for area in areas {
            bases.push(size);
            size += u32::try_from(area.bytes.len()).unwrap_or(0);
        }
        let cache = Numbered::new(size as usize);
        let largest = areas.iter().zip(&bases).max_by_key(|(area, _)| area.bytes.len());
        let (main, main_base) = largest.map_or((Area { start: 0, bytes: &[] }, 0), |(area, &base)| (*area, base as usize));
        Self { areas: areas.to_vec(), main, main_base, bases, cache, memo }
    }

    pub(crate) fn areas(&self) -> &[Area<'a>] {
        &self.areas
    }

    pub(crate) fn size(&self) -> usize {
        self.cache.len()
    }

    #[inline]
    fn offset_in_main(&self, address: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.main.start);
        (offset < self.main.bytes.len() as u64).then_some(offset as usize)
    }

    fn locate(&self, address: u64) -> Option<(usize, usize)> {
        let area = self.areas.partition_point(|area| area.start <= address).checked_sub(1)?;
        let offset = usize::try_from(address - self.areas[area].start).ok()?;
        (offset < self.areas[area].bytes.len()).then_some((area, offset))
    }

    #[inline]
    pub(crate) fn index(&self, address: u64) -> Option<usize> {
        match self.offset_in_main(address) {
            Some(offset) => Some(self.main_base + offset),
            None => self.locate(address).map(|(area, offset)| self.bases[area] as usize + offset),
        }
    }

    pub(crate) fn address(&self, index: usize) -> u64 {
        let area = self.bases.partition_point(|&base| base as usize <= index) - 1;
        self.areas[area].start + (index - self.bases[area] as usize) as u64
    }

    /// The bytes from `address` to the end of its area.
    #[inline]
    pub(crate) fn tail(&self, address: u64) -> Option<&'a [u8]> {
        match self.offset_in_main(address) {
            Some(offset) => self.main.bytes.get(offset..),
            None => self.locate(address).and_then(|(area, offset)| self.areas[area].bytes.get(offset..)),
        }
    }

    pub(crate) fn bytes(&self, address: u64, inst: Inst) -> &'a [u8] {
        self.tail(address).and_then(|tail| tail.get(..usize::from(inst.len))).unwrap_or(&[])
    }

    /// Decodes what lies in `start..end` one after the other, to fill the cache. Behind what is no instruction it goes on with the next byte: there may be data between code.
    fn decode_range(&self, decoder: &Decoder, start: u64, end: u64) {
        let (Some(first), Some(tail)) = (self.index(start), self.tail(start)) else { return };
        let size = usize::try_from(end - start).unwrap_or(usize::MAX).min(tail.len());
        let mut offset = 0;
        while offset < size {
            let packed = self.decode(decoder, &tail[offset..], start + offset as u64);
            self.cache.set(first + offset, packed);
            offset += if packed == INVALID { 1 } else { usize::from(packed & 15) };
        }
    }

    /// The instruction that code begins with, packed.
    fn decode(&self, decoder: &Decoder, tail: &[u8], address: u64) -> u16 {
        let window = &tail[..tail.len().min(15)];
        let shape = Shape::of(window);
        if let Some(undefined) = undefined(window, &shape) {
            return pack(undefined);
        }
        let beginning = Beginning::of(window, &shape);
        let known = beginning.and_then(|beginning| self.memo.find(beginning));
        if let Some(packed) = known.filter(|packed| usize::from(packed & 15) <= window.len()) {
            return packed;
        }
        let found = decoder.0.disasm_count(window, address, 1).ok();
        let decoded = found.as_ref().and_then(|list| list.iter().next().map(|found| classify(found.id().0, found.bytes())));
        if let (Some(beginning), Some(inst)) = (beginning, decoded) {
            self.memo.keep(beginning, pack(inst));
        }
        decoded.or_else(|| fallback(window)).map_or(INVALID, pack)
    }

    /// Fills the cache for all ranges, on all threads.
    pub(crate) fn predecode(&self, ranges: &[(u64, u64)]) {
        ranges.par_chunks(64).for_each(|chunk| {
            // Without a disassembler the walk reports the error.
            let Ok(decoder) = Decoder::new() else { return };
            for &(start, end) in chunk {
                self.decode_range(&decoder, start, end);
            }
        });
    }

    /// The indexes that something was decoded at so far.
    pub(crate) fn decoded(&self) -> impl Iterator<Item = usize> + '_ {
        self.cache.known()
    }

    #[inline]
    pub(crate) fn inst(&self, decoder: &Decoder, address: u64) -> Option<Inst> {
        let index = self.index(address)?;
        match self.cache.get(index) {
            Known::Decoded(known) => known,
            Known::Nothing => self.inst_anew(decoder, address, index),
        }
    }

    #[cold]
    fn inst_anew(&self, decoder: &Decoder, address: u64, index: usize) -> Option<Inst> {
        let packed = self.decode(decoder, self.tail(address)?, address);
        self.cache.set(index, packed);
        unpack(packed)
    }
}

fn pack(inst: Inst) -> u16 {
    u16::from(inst.len) | (inst.kind as u16) << 4 | u16::from(inst.disp) << 9
}

fn unpack(packed: u16) -> Option<Inst> {
    if packed == INVALID {
        return None;
    }
    let kind = *KINDS.get(usize::from(packed >> 4 & 31))?;
    Some(Inst { len: (packed & 15) as u8, kind, disp: (packed >> 9 & 15) as u8 })
}

fn classify(id: u32, bytes: &[u8]) -> Inst {
    let shape = Shape::of(bytes);
    let len = bytes.len().min(15) as u8;
    let disp = if shape.is_rip_relative(bytes) { shape.modrm as u8 + 1 } else { 0 };
    Inst { len, kind: kind_of(id, bytes, &shape), disp }
}

fn kind_of(id: u32, bytes: &[u8], shape: &Shape) -> Kind {
    let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
    let is = |wanted: X86Insn| id == wanted as u32;
    if shape.is_nop(bytes) {
        return Kind::Nop;
    }
    match (shape.map, opcode) {
        (0, 0xeb | 0xe9) => return Kind::Jump,
        (0, 0xe8) => return Kind::Call,
        (0, 0x70..=0x7f) | (1, 0x80..=0x8f) if !shape.vector => return Kind::Branch,
        (0, 0xe0..=0xe3) => return Kind::Loop,
        _ => {}
    }
    if is(X86Insn::X86_INS_XBEGIN) {
        Kind::Loop
    } else if is(X86Insn::X86_INS_JMP) || is(X86Insn::X86_INS_LJMP) {
        Kind::IndirectJump
    } else if is(X86Insn::X86_INS_CALL) || is(X86Insn::X86_INS_LCALL) {
        Kind::IndirectCall
    } else if [
        X86Insn::X86_INS_RET,
        X86Insn::X86_INS_RETF,
        X86Insn::X86_INS_RETFQ,
        X86Insn::X86_INS_IRET,
        X86Insn::X86_INS_IRETD,
        X86Insn::X86_INS_IRETQ,
    ]
    .into_iter()
    .any(is)
    {
        Kind::Return
    } else if is(X86Insn::X86_INS_UD2) || is(X86Insn::X86_INS_HLT) {
        Kind::Stop
    } else if is(X86Insn::X86_INS_INT3) {
        Kind::Trap
    } else if is(X86Insn::X86_INS_LEA) {
        Kind::Lea
    } else if is(X86Insn::X86_INS_ENDBR64) {
        Kind::EndBranch
    } else {
        Kind::Plain
    }
}

/// `ud1` and `ud0`, with which compilers trap and say why: their operands belong to them, of which the disassembler knows nothing.
fn undefined(window: &[u8], shape: &Shape) -> Option<Inst> {
    let is_undefined = shape.map == 1 && !shape.vector && matches!(window.get(shape.opcode), Some(0xb9 | 0xff));
    // Its ModRM follows the opcode whatever the shape says of it.
    let modrm = is_undefined.then_some(shape.opcode + 1)?;
    Some(Inst { kind: Kind::Stop, ..with_operand(window, modrm, 0)? })
}

/// Encodings newer than the disassembler: the maps in which the length follows from the map alone.
fn fallback(window: &[u8]) -> Option<Inst> {
    let shape = Shape::of(window);
    let immediate = match shape.map {
        2 | 5 | 6 => 0,
        3 => 1,
        // The PadLock instructions of VIA.
        1 if !shape.vector && matches!(window.get(shape.opcode), Some(0xa6 | 0xa7)) => 0,
        // `serialize`, `xsusldtrk` and `xresldtrk`: no operands.
        1 if !shape.vector && matches!(window.get(shape.opcode..), Some([0x01, 0xe8 | 0xe9, ..])) => 0,
        _ => return None,
    };
    with_operand(window, Some(shape.modrm).filter(|&at| at != 0)?, immediate)
}

/// An instruction with a ModRM at an offset, and bytes of an immediate behind what that asks for.
fn with_operand(window: &[u8], at: usize, immediate: usize) -> Option<Inst> {
    let modrm = *window.get(at)?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut len = at + 1 + immediate;
    let mut base = rm;
    if mode != 3 && rm == 4 {
        base = window.get(at + 1)? & 7;
        len += 1;
    }
    len += match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    (len <= window.len()).then(|| Inst {
        len: len as u8,
        kind: Kind::Plain,
        disp: if mode == 0 && rm == 5 { at as u8 + 1 } else { 0 },
    })
}

/// Where the parts of an encoding are.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Offset of the opcode's last byte.
    pub(crate) opcode: usize,
    /// 0: one byte, 1: `0f`, 2: `0f 38`, 3: `0f 3a`, others as in VEX, EVEX, XOP.
    pub(crate) map: u8,
    /// Offset of ModRM, 0 if there is none.
    pub(crate) modrm: usize,
    /// VEX, EVEX or XOP.
    pub(crate) vector: bool,
    rex: u8,
    repeat: bool,
}

impl Shape {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let mut shape = Self::default();
        let mut at = 0;
        while matches!(byte(at), 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65) {
            shape.repeat |= byte(at) == 0xf3;
            at += 1;
            if at >= 15 {
                return shape;
            }
        }
        if byte(at) & 0xf0 == 0x40 {
            shape.rex = byte(at);
            at += 1;
        }
        let vector = match byte(at) {
            0xc5 => Some((1, 2)),
            0xc4 => Some((byte(at + 1) & 0x1f, 3)),
            0x62 => Some((byte(at + 1) & 7, 4)),
            0x8f if byte(at + 1) & 0x1f >= 8 => Some((byte(at + 1) & 0x1f, 3)),
            _ => None,
        };
        if let Some((map, size)) = vector {
            let opcode = at + size;
            let has_modrm = !(map == 1 && byte(opcode) == 0x77);
            return Self { opcode, map, modrm: if has_modrm { opcode + 1 } else { 0 }, vector: true, ..shape };
        }
        if byte(at) == 0x0f {
            at += 1;
            shape.map = 1;
            if matches!(byte(at), 0x38 | 0x3a) {
                shape.map = if byte(at) == 0x38 { 2 } else { 3 };
                at += 1;
            }
        }
        let opcode = byte(at);
        let has_modrm = match shape.map {
            0 => {
                (opcode < 0x40 && opcode & 7 < 4)
                    || matches!(opcode, 0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xd8..=0xdf)
                    || matches!(opcode, 0xf6 | 0xf7 | 0xfe | 0xff)
            }
            1 => !matches!(
                opcode,
                0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
            ),
            _ => true,
        };
        shape.opcode = at;
        shape.modrm = if has_modrm { at + 1 } else { 0 };
        shape
    }

    /// The prefix that widens operands and extends registers, 0 if there is none.
    pub(crate) fn rex(&self) -> u8 {
        self.rex
    }

    /// Where the immediate of 32 bits (or of 64, in `movabs`) begins in which the instruction ends, by appendix A of the manual.
    pub(crate) fn wide_immediate_at(&self, bytes: &[u8]) -> Option<usize> {
        let opcode = bytes.get(self.opcode).copied().unwrap_or(0);
        let is_quad = self.rex & 8 != 0;
        let is_short = bytes.get(..self.opcode).is_some_and(|prefixes| prefixes.contains(&0x66)) && !is_quad;
        let group = bytes.get(self.modrm).map_or(0, |modrm| modrm >> 3 & 7);
        let has_immediate = match opcode {
            0x05 | 0x0d | 0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x68 | 0x69 | 0x81 | 0xa9 | 0xb8..=0xbf => true,
            0xc7 => group == 0,
            0xf7 => group < 2,
            _ => false,
        };
        if self.map != 0 || self.vector || is_short || !has_immediate {
            return None;
        }
        bytes.len().checked_sub(if is_quad && matches!(opcode, 0xb8..=0xbf) { 8 } else { 4 })
    }

    /// That immediate.
    pub(crate) fn wide_immediate(&self, bytes: &[u8]) -> Option<u64> {
        let field = bytes.get(self.wide_immediate_at(bytes)?..)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// Whether an instruction with a wide immediate masks, sets, tests or flips bits by it, or multiplies: nobody does that with an address.
    pub(crate) fn counts_bits(&self, bytes: &[u8]) -> bool {
        let group = bytes.get(self.modrm).map_or(0, |modrm| modrm >> 3 & 7);
        match bytes.get(self.opcode).copied().unwrap_or(0) {
            0x0d | 0x25 | 0x35 | 0x69 | 0xa9 => true,
            0x81 => matches!(group, 1 | 4 | 6),
            0xf7 => group < 2,
            _ => false,
        }
    }

    pub(crate) fn is_rip_relative(&self, bytes: &[u8]) -> bool {
        self.modrm != 0 && bytes.get(self.modrm).is_some_and(|modrm| modrm & 0xc7 == 0x05)
    }

    /// `90` and `0f 1f /0` with any prefixes, but neither `pause` nor `xchg r8, rax`.
    fn is_nop(&self, bytes: &[u8]) -> bool {
        let opcode = bytes.get(self.opcode).copied().unwrap_or(0);
        match self.map {
            0 => opcode == 0x90 && !self.repeat && self.rex & 1 == 0,
            1 => opcode == 0x1f && !self.vector && bytes.get(self.modrm).is_some_and(|modrm| modrm & 0x38 == 0),
            _ => false,
        }
    }

    /// The register of an instruction with ModRM, the one that it adds to or reads as a base, and the index.
    pub(crate) fn registers(&self, bytes: &[u8]) -> Option<[Option<u8>; 3]> {
        let modrm = *bytes.get(self.modrm).filter(|_| self.modrm != 0)?;
        let extend = |bit: u8, low: u8| (self.rex >> bit & 1) << 3 | low & 7;
        let register = Some(extend(2, modrm >> 3));
        if modrm & 0xc7 == 5 {
            return Some([register, None, None]);
        }
        if modrm >> 6 == 3 || modrm & 7 != 4 {
            return Some([register, Some(extend(0, modrm)), None]);
        }
        let sib = *bytes.get(self.modrm + 1)?;
        // 4 without extension is no index.
        let index = Some(extend(1, sib >> 3)).filter(|&index| index != 4);
        Some([register, Some(extend(0, sib)), index])
    }

    /// The general registers that an instruction with ModRM may read, if it is one that the disassembler does not know. In the map `0f 38` of VEX what stands in the place of memory is a vector, but for
    /// what works on single bits (`f0` and above) and what spreads a general register (EVEX, `7a` to `7c`); and what VEX's instructions write first they do not read.
    pub(crate) fn may_read(&self, bytes: &[u8]) -> [Option<u8>; 3] {
        let Some([register, base, index]) = self.registers(bytes) else { return [None; 3] };
        let is_direct = bytes.get(self.modrm).is_some_and(|modrm| modrm >> 6 == 3);
        let is_of_vectors = || bytes.get(self.opcode).is_some_and(|opcode| !matches!(opcode, 0x7a..=0x7c | 0xf0..));
        match (self.vector, is_direct && self.map == 2 && is_of_vectors()) {
            (true, true) => [None; 3],
            (true, false) => [None, base, index],
            (false, _) => [register, base, index],
        }
    }

    /// Where an absolute 32-bit displacement may stand: ModRM with a SIB byte without base, or a base and a 32-bit displacement.
    pub(crate) fn wide_displacement(&self, bytes: &[u8]) -> Option<usize> {
        let modrm = *bytes.get(self.modrm).filter(|_| self.modrm != 0)?;
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let after = self.modrm + 1 + usize::from(rm == 4 && mode != 3);
        let sib_base = bytes.get(self.modrm + 1).map_or(0, |sib| sib & 7);
        match mode {
            2 => Some(after),
            0 if rm == 4 && sib_base == 5 => Some(after),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_newer_than_the_disassembler_have_a_length() {
        let decoder = Decoder::new().unwrap();
        let memo = Arc::new(Memo::new());
        let new: [&[u8]; 3] = [&[0x0f, 0x01, 0xe8], &[0xf2, 0x0f, 0x01, 0xe8], &[0xf2, 0x0f, 0x01, 0xe9]];
        for instruction in new {
            let bytes = [instruction, &[0x48, 0x83, 0xc4, 0x10, 0xc3]].concat();
            let code = Code::new(&[Area { start: 0x1000, bytes: &bytes }], Arc::clone(&memo));
            let found = code.inst(&decoder, 0x1000).unwrap();
            assert_eq!(
                (usize::from(found.len), found.kind, found.disp),
                (instruction.len(), Kind::Plain, 0),
                "{instruction:02x?}"
            );
        }
        // Returns from an interrupt: nothing is said of what the disassembler does not know and the length does not follow for.
        let code = Code::new(&[Area { start: 0x1000, bytes: &[0xf3, 0x0f, 0x01, 0xec] }], memo);
        assert_ne!(code.inst(&decoder, 0x1000).map(|found| found.kind), Some(Kind::Plain));
    }

    #[test]
    fn immediates_of_32_bits_and_more_are_wide_and_read_whole() {
        let wide: [&[u8]; 5] = [
            &[0xbf, 0x80, 0x7d, 0x70, 0],
            &[0x48, 0xc7, 0xc0, 0x80, 0x7d, 0x70, 0],
            &[0x81, 0x7d, 8, 0x80, 0x7d, 0x70, 0],
            &[0x68, 0x80, 0x7d, 0x70, 0],
            &[0x66, 0x48, 0xb8, 0x80, 0x7d, 0x70, 0, 0, 0, 0, 0],
        ];
        // `cmp byte [rbp + 0x70], 0`, the same with r13, a load from a displacement, `mov ax, imm16`, a vector instruction.
        let others: [&[u8]; 5] = [
            &[0x80, 0x7d, 0x70, 0],
            &[0x41, 0x80, 0x7d, 0x70, 0],
            &[0x8b, 0x80, 0x80, 0x7d, 0x70, 0],
            &[0x66, 0xb8, 0x80, 0x7d],
            &[0xc5, 0xf8, 0x28, 0x80, 0x80, 0x7d, 0x70, 0],
        ];
        for bytes in wide {
            assert_eq!(Shape::of(bytes).wide_immediate(bytes), Some(0x70_7d80), "{bytes:02x?}");
        }
        for bytes in others {
            assert_eq!(Shape::of(bytes).wide_immediate(bytes), None, "{bytes:02x?}");
        }
        // `movabs $0x9c000000000000, %rcx`: its upper half is no number by itself.
        let high = [0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0x9c, 0];
        assert_eq!(Shape::of(&high).wide_immediate(&high), Some(0x9c_0000_0000_0000));
    }

    /// Any instruction that a compiler may write: opcodes of all maps with all operands, behind usual prefixes.
    fn encodings() -> impl Iterator<Item = [u8; 15]> {
        const PREFIXES: [&[u8]; 8] = [&[], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0x66, 0x48], &[0xf3, 0x48], &[0x67]];
        const MAPS: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        let beginnings = PREFIXES.iter().flat_map(|&prefix| MAPS.iter().map(move |&map| [prefix, map].concat()));
        beginnings.flat_map(|beginning| {
            (0..=u16::MAX).map(move |word| {
                let mut bytes = [0x11; 15];
                bytes[..beginning.len()].copy_from_slice(&beginning);
                bytes[beginning.len()..beginning.len() + 2].copy_from_slice(&word.to_le_bytes());
                bytes
            })
        })
    }

    #[test]
    fn another_disassembler_finds_the_same_lengths() {
        let memo = Arc::new(Memo::new());
        let decoder = Decoder::new().unwrap();
        let code = Code::new(&[], memo);
        let mut wrong = std::collections::BTreeMap::new();
        for bytes in encodings() {
            let other = iced_x86::Decoder::new(64, &bytes, iced_x86::DecoderOptions::NONE).decode();
            let Some(found) = unpack(code.decode(&decoder, &bytes, 0)) else { continue };
            // Of the prefix for 16 bits before a branch or a return, processors think differently too.
            let is_ambiguous = bytes[0] == 0x66 && other.flow_control() != iced_x86::FlowControl::Next;
            if !other.is_invalid() && !is_ambiguous && usize::from(found.len) != other.len() {
                wrong.entry(format!("{:?}", other.code())).or_insert((bytes, found.len, other.len()));
            }
        }
        assert!(wrong.is_empty(), "{wrong:02x?}");
    }
}
