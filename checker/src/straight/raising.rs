//! Which instructions may raise the stack pointer, and which lower it.
//!
//! **The rule.** Whatever may write the stack pointer, or a part of it, may raise it. Excepted are those of which the result is never above what was there: pushes and calls (of what is called it is
//! taken for granted that it returns with the stack as it was), `enter`, `and`, and of 32 bits and more `add` of a number that is negative, and `sub` of one that is not or of something that is no number: what
//! compilers take off the stack pointer is a size. What leaves raises nothing: control does not go on behind it.
//!
//! Which operand an instruction writes follows from the opcode (Intel SDM vol. 2, appendix A; AMD manual vol. 3, appendix A). In the map of one byte, what is not listed may raise. In the others
//! most instructions write vectors, of which the fourth has the stack pointer's number, so there those are listed that write a general register; what is not listed in a map or a part of one that
//! has many of these, or is in a map that is not known, may raise.

use super::{Parts, STACK};

/// What of the byte before the opcode of a vector instruction says which of several it is: as a prefix `66`, `f3` or `f2` would.
const OF_66: u8 = 1;
const OF_F3: u8 = 2;

impl Parts<'_> {
    /// Whether this may leave the stack pointer higher than it was.
    pub(crate) fn raises_stack(&self) -> bool {
        if self.shape.vector {
            return self.vector_writes_stack();
        }
        let (reg, operand) = (self.reg() == Some(STACK), self.register_operand() == Some(STACK));
        match self.shape.map {
            0 => self.raises_in_first_map(),
            1 => self.writes_stack_in_second_map(reg, operand),
            // Caches of translations; `movbe`, `crc32`, `adcx` and what is newer.
            2 => matches!(self.opcode, 0x80..=0x8f | 0xf0..=0xff) && (reg || operand),
            // `pextr` and `extractps`.
            3 => matches!(self.opcode, 0x14..=0x17) && operand,
            _ => true,
        }
    }

    /// Whether this leaves the stack pointer lower than it was: it pushes or makes room.
    pub(crate) fn lowers_stack(&self) -> bool {
        if self.shape.vector || self.raises_stack() {
            return false;
        }
        let (reg, operand) = (self.reg() == Some(STACK), self.register_operand() == Some(STACK));
        match (self.shape.map, self.opcode) {
            (0, 0x50..=0x57 | 0x68 | 0x6a | 0x9c | 0xc8) | (1, 0xa0 | 0xa8) => true,
            (0, 0x29) => operand,
            (0, 0x2b) => reg,
            (0, 0x81 | 0x83) => operand && matches!(self.group(), Some(0 | 5)),
            (0, 0xff) => self.group() == Some(6),
            _ => false,
        }
    }

    fn raises_in_first_map(&self) -> bool {
        let of = |register: Option<u8>| register == Some(STACK);
        let of_byte = |register: Option<u8>| register.is_some_and(|register| self.of_byte(register) == STACK);
        let (reg, operand) = (self.reg(), self.register_operand());
        let group = self.group();
        let is_whole = !self.legacy_prefixes().contains(&0x66) || self.is_wide();
        match self.opcode {
            // `and`, `sub` and `cmp`; the accumulator's.
            0x20..=0x25 | 0x38..=0x3d => false,
            0x29 if is_whole => false,
            0x2b if is_whole => false,
            0x00..=0x3f => match self.opcode & 7 {
                0 => of_byte(operand),
                1 => of(operand),
                2 => of_byte(reg),
                3 => of(reg),
                4 | 5 => false,
                _ => true,
            },
            // `push`, jumps, `test`, moves to segments, `cbw` and `cwd`, `pushf`, flags in `ah`.
            0x50..=0x57 | 0x68 | 0x6a | 0x70..=0x7f | 0x84 | 0x85 | 0x8e | 0x98 | 0x99 | 0x9b | 0x9c | 0x9e | 0x9f => false,
            // Strings, at an absolute address, the accumulator's, ports, floating point.
            0x6c..=0x6f | 0xa0..=0xaf | 0xd7..=0xdf | 0xe4..=0xe7 | 0xec..=0xef => false,
            // Calls and jumps, what leaves, `enter`, interrupts, `hlt`, and flags.
            0xc2 | 0xc3 | 0xc8 | 0xca..=0xcd | 0xcf | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb | 0xf1 | 0xf4 | 0xf5 | 0xf8..=0xfd => {
                false
            }
            0x63 | 0x69 | 0x6b | 0x8b | 0x8d => of(reg),
            0x80 | 0x81 | 0x83 => match group {
                Some(4 | 7) => false,
                Some(0 | 5) if self.opcode != 0x80 && is_whole => {
                    let size = if self.opcode == 0x83 { 1 } else { 4 };
                    let is_up = |number: u64| (number.cast_signed() < 0) == (group == Some(5));
                    of(operand) && self.immediate(size).is_none_or(is_up)
                }
                _ if self.opcode == 0x80 => of_byte(operand),
                _ => of(operand),
            },
            0x86 => of_byte(operand) || of_byte(reg),
            0x87 => of(operand) || of(reg),
            0x88 | 0xc0 | 0xc6 | 0xd0 | 0xd2 => of_byte(operand),
            0x89 | 0x8c | 0xc1 | 0xc7 | 0xd1 | 0xd3 => of(operand),
            0x8a => of_byte(reg),
            0x90..=0x97 | 0xb8..=0xbf => self.in_opcode() == STACK,
            0xb0..=0xb7 => self.of_byte(self.in_opcode()) == STACK,
            // Tests, and what multiplies and divides in the accumulator.
            0xf6 => matches!(group, Some(2 | 3)) && of_byte(operand),
            0xf7 => matches!(group, Some(2 | 3)) && of(operand),
            0xfe => of_byte(operand),
            // `inc` and `dec`; calls, jumps and `push`.
            0xff => matches!(group, Some(0 | 1)) && of(operand),
            // `pop`, `popf`, `leave`, and what is not understood.
            _ => true,
        }
    }

    /// The same where `0f` is before the opcode, and the stack pointer's number stands in the middle of ModRM or is the operand's.
    fn writes_stack_in_second_map(&self, reg: bool, operand: bool) -> bool {
        let has = |prefix: u8| self.legacy_prefixes().contains(&prefix);
        match self.opcode {
            // What the system's tables are; control registers, `vmread`.
            0x00 | 0x01 | 0x20..=0x27 => operand,
            0x78 => operand && !has(0x66) && !has(0xf2),
            // `lar`, `lsl`, numbers from vectors, `cmov`, and masks from vectors.
            0x02 | 0x03 | 0x2c | 0x2d | 0x40..=0x50 | 0xc5 | 0xd7 => reg,
            // `rdssp`, among hints.
            0x1e => operand && has(0xf3) && self.group() == Some(1),
            0x7e => operand && !has(0xf3),
            0x90..=0x9f => operand && self.rex != 0,
            // `pop` of a segment, `sysexit`, `rsm`.
            0x35 | 0xa1 | 0xa9 | 0xaa => true,
            // `shld`, `shrd`, `bts`, `btr`, `btc`, `cmpxchg`.
            0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xb1 | 0xb3 | 0xbb => operand,
            0xb0 => operand && self.rex != 0,
            // Bases of segments; `bts` by a number; random numbers.
            0xae => operand && matches!(self.group(), Some(0 | 1)),
            0xba => operand && self.group() != Some(4),
            0xc7 => operand,
            // `imul`, far pointers, extended moves, `popcnt`, and searches for bits.
            0xaf | 0xb2 | 0xb4..=0xb8 | 0xbc..=0xbf => reg,
            0xc0 => (reg || operand) && self.rex != 0,
            0xc1 => reg || operand,
            0xc8..=0xcf => self.in_opcode() == STACK,
            _ => false,
        }
    }

    fn vector_writes_stack(&self) -> bool {
        let at = self.legacy_prefixes().len();
        let byte = |offset: usize| self.bytes.get(at + offset).copied().unwrap_or(0);
        // Registers are extended, and another one named, in ones' complement.
        let (extended, last) = if byte(0) == 0xc5 { (byte(1) | 0x60, byte(1)) } else { (byte(1), byte(2)) };
        let other = !last >> 3 & 15 == STACK;
        let modes = self.modes.unwrap_or(0);
        let reg = modes >> 3 & 7 == STACK && extended & 0x80 != 0;
        let operand = modes >> 6 == 3 && modes & 7 == STACK && extended & 0x20 != 0;
        match (self.shape.map, self.opcode, last & 3) {
            // Numbers from vectors, masks from vectors, elements, and mask registers.
            (1 | 5, 0x2c | 0x2d | 0x78 | 0x79, OF_F3..) | (1, 0x50 | 0x93 | 0xc5 | 0xd7, _) => reg,
            (1 | 5, 0x7e, OF_66) | (3, 0x14..=0x17, _) => operand,
            // `cmpccxadd`, and arithmetic on general registers.
            (2, 0xe0..=0xff, _) => reg || other,
            // `rorx`.
            (3, 0xf0, _) => reg,
            (1..=3 | 5 | 6 | 8, _, _) => false,
            // Of XOP.
            (9, 0x01 | 0x02, _) => other,
            (9, 0x12, _) => operand,
            (9, _, _) => false,
            (10, _, _) => reg || other,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_raise_the_stack_pointer_is_told_from_what_does_not() {
        let raising: [&[u8]; 68] = [
            &[0x5c],                                  // pop rsp
            &[0x58],                                  // pop rax
            &[0x8f, 0x00],                            // pop [rax]
            &[0x0f, 0xa1],                            // pop fs
            &[0x0f, 0xa9],                            // pop gs
            &[0x9d],                                  // popf
            &[0xc9],                                  // leave
            &[0x48, 0x83, 0xc4, 8],                   // add rsp, 8
            &[0x48, 0x81, 0xc4, 0, 1, 0, 0],          // add rsp, 256
            &[0x48, 0x01, 0xc4],                      // add rsp, rax
            &[0x48, 0x03, 0x20],                      // add rsp, [rax]
            &[0x40, 0x80, 0xc4, 8],                   // add spl, 8
            &[0x66, 0x83, 0xc4, 8],                   // add sp, 8
            &[0x66, 0x83, 0xc4, 0xf8],                // add sp, -8
            &[0x48, 0x83, 0xc4, 0],                   // add rsp, 0
            &[0x48, 0x83, 0xec, 0xf8],                // sub rsp, -8
            &[0x48, 0x81, 0xec, 0, 0, 0, 0x80],       // sub rsp, -0x80000000
            &[0x40, 0x80, 0xec, 8],                   // sub spl, 8
            &[0x66, 0x83, 0xec, 8],                   // sub sp, 8
            &[0x66, 0x29, 0xc4],                      // sub sp, ax
            &[0x40, 0x28, 0xc4],                      // sub spl, al
            &[0x48, 0x83, 0xd4, 0],                   // adc rsp, 0
            &[0x48, 0x11, 0xc4],                      // adc rsp, rax
            &[0x48, 0x13, 0xe0],                      // adc rsp, rax
            &[0x48, 0x83, 0xdc, 0],                   // sbb rsp, 0
            &[0x48, 0x83, 0xcc, 8],                   // or rsp, 8
            &[0x48, 0x33, 0xe0],                      // xor rsp, rax
            &[0x48, 0xff, 0xc4],                      // inc rsp
            &[0x48, 0xff, 0xcc],                      // dec rsp
            &[0x40, 0xfe, 0xc4],                      // inc spl
            &[0x48, 0xf7, 0xdc],                      // neg rsp
            &[0x48, 0xf7, 0xd4],                      // not rsp
            &[0x48, 0xc1, 0xe4, 2],                   // shl rsp, 2
            &[0x48, 0xd1, 0xcc],                      // ror rsp, 1
            &[0x48, 0x6b, 0xe0, 3],                   // imul rsp, rax, 3
            &[0x48, 0x0f, 0xaf, 0xe0],                // imul rsp, rax
            &[0x48, 0x89, 0xc4],                      // mov rsp, rax
            &[0x48, 0x8b, 0x20],                      // mov rsp, [rax]
            &[0x48, 0x8d, 0x64, 0x24, 8],             // lea rsp, [rsp + 8]
            &[0xbc, 0, 0, 1, 0],                      // mov esp, 65536
            &[0x48, 0xbc, 0, 0, 1, 0, 0, 0, 0, 0],    // mov rsp, 65536
            &[0x40, 0xb4, 1],                         // mov spl, 1
            &[0x48, 0xc7, 0xc4, 0, 0, 1, 0],          // mov rsp, 65536
            &[0x40, 0xc6, 0xc4, 1],                   // mov spl, 1
            &[0x40, 0x88, 0xc4],                      // mov spl, al
            &[0x40, 0x8a, 0x20],                      // mov spl, [rax]
            &[0x8c, 0xdc],                            // mov esp, ds
            &[0x48, 0x94],                            // xchg rax, rsp
            &[0x94],                                  // xchg eax, esp
            &[0x48, 0x87, 0xe0],                      // xchg rax, rsp
            &[0x48, 0x63, 0xe0],                      // movsxd rsp, eax
            &[0x48, 0x0f, 0x44, 0xe0],                // cmove rsp, rax
            &[0x48, 0x0f, 0xb6, 0xe0],                // movzx rsp, al
            &[0x48, 0x0f, 0xbc, 0xe0],                // bsf rsp, rax
            &[0xf3, 0x48, 0x0f, 0xb8, 0xe0],          // popcnt rsp, rax
            &[0x48, 0x0f, 0xc1, 0xc4],                // xadd rsp, rax
            &[0x48, 0x0f, 0xb1, 0xc4],                // cmpxchg rsp, rax
            &[0x48, 0x0f, 0xba, 0xec, 5],             // bts rsp, 5
            &[0x48, 0x0f, 0xcc],                      // bswap rsp
            &[0x40, 0x0f, 0x94, 0xc4],                // sete spl
            &[0x66, 0x48, 0x0f, 0x7e, 0xc4],          // movq rsp, xmm0
            &[0x0f, 0x50, 0xe0],                      // movmskps esp, xmm0
            &[0xf2, 0x48, 0x0f, 0x2c, 0xe0],          // cvttsd2si rsp, xmm0
            &[0x66, 0x48, 0x0f, 0x3a, 0x16, 0xc4, 1], // pextrq rsp, xmm0, 1
            &[0xc4, 0xe1, 0xf9, 0x7e, 0xc4],          // vmovq rsp, xmm0
            &[0xc4, 0xe2, 0xd8, 0xf3, 0xd8],          // blsi rsp, rax
            &[0xc4, 0xe3, 0xfb, 0xf0, 0xe0, 4],       // rorx rsp, rax, 4
            &[0xc5, 0xf8, 0x50, 0xe0],                // vmovmskps esp, xmm0
        ];
        let others: [&[u8]; 49] = [
            &[0x54],                                  // push rsp
            &[0x50],                                  // push rax
            &[0x6a, 1],                               // push 1
            &[0xff, 0x34, 0x24],                      // push [rsp]
            &[0xe8, 0, 0, 0, 0],                      // call
            &[0xff, 0xd4],                            // call rsp
            &[0x48, 0x83, 0xec, 8],                   // sub rsp, 8
            &[0x48, 0x81, 0xec, 0, 1, 0, 0],          // sub rsp, 256
            &[0x48, 0x29, 0xc4],                      // sub rsp, rax
            &[0x48, 0x2b, 0x20],                      // sub rsp, [rax]
            &[0x48, 0x83, 0xc4, 0x80],                // add rsp, -128
            &[0x48, 0x81, 0xc4, 0, 0xff, 0xff, 0xff], // add rsp, -256
            &[0x48, 0x83, 0xe4, 0xf0],                // and rsp, -16
            &[0x48, 0x21, 0xc4],                      // and rsp, rax
            &[0x48, 0x39, 0xc4],                      // cmp rsp, rax
            &[0x48, 0x83, 0xfc, 0],                   // cmp rsp, 0
            &[0x48, 0x85, 0xe4],                      // test rsp, rsp
            &[0xc3],                                  // ret
            &[0x49, 0x83, 0xc4, 8],                   // add r12, 8
            &[0x49, 0x89, 0xc4],                      // mov r12, rax
            &[0x41, 0xbc, 1, 0, 0, 0],                // mov r12d, 1
            &[0x49, 0x94],                            // xchg rax, r12
            &[0x80, 0xc4, 8],                         // add ah, 8
            &[0xb4, 1],                               // mov ah, 1
            &[0x88, 0xc4],                            // mov ah, al
            &[0x0f, 0x94, 0xc4],                      // sete ah
            &[0x48, 0x89, 0x24, 0x24],                // mov [rsp], rsp
            &[0x48, 0x8b, 0x44, 0x24, 8],             // mov rax, [rsp + 8]
            &[0x48, 0x89, 0xe0],                      // mov rax, rsp
            &[0x83, 0x44, 0x24, 8, 1],                // add [rsp + 8], 1
            &[0x0f, 0x28, 0xe4],                      // movaps xmm4, xmm4
            &[0x0f, 0x58, 0xe0],                      // addps xmm4, xmm0
            &[0x66, 0x0f, 0x6f, 0xe0],                // movdqa xmm4, xmm0
            &[0x66, 0x0f, 0x6e, 0xe0],                // movd xmm4, eax
            &[0x66, 0x0f, 0x7e, 0xe0],                // movd eax, xmm4
            &[0xf3, 0x0f, 0x7e, 0xc4],                // movq xmm0, xmm4
            &[0xf2, 0x0f, 0x2a, 0xe0],                // cvtsi2sd xmm4, eax
            &[0xf2, 0x0f, 0x2c, 0xc4],                // cvttsd2si eax, xmm4
            &[0x66, 0x0f, 0x3a, 0x0f, 0xe4, 8],       // palignr xmm4, xmm4, 8
            &[0x66, 0x0f, 0x3a, 0x16, 0xe0, 1],       // pextrd eax, xmm4, 1
            &[0x66, 0x0f, 0x38, 0x00, 0xe4],          // pshufb xmm4, xmm4
            &[0xc5, 0xd8, 0x58, 0xe4],                // vaddps xmm4, xmm4, xmm4
            &[0xc5, 0xf9, 0x7e, 0xe0],                // vmovd eax, xmm4
            &[0xc5, 0xfa, 0x7e, 0xe4],                // vmovq xmm4, xmm4
            &[0xc4, 0xc2, 0x38, 0xf2, 0xc4],          // andn eax, r8d, r12d
            &[0xc4, 0x62, 0xb8, 0xf2, 0xe0],          // andn r12, r8, rax
            &[0xc4, 0xe2, 0x5d, 0x58, 0xe4],          // vpbroadcastd ymm4, xmm4
            &[0x62, 0xf1, 0x5c, 0x48, 0x58, 0xe4],    // vaddps zmm4, zmm4, zmm4
            &[0x62, 0xf1, 0x7c, 0x48, 0x78, 0xe4],    // vcvttps2udq zmm4, zmm4
        ];
        for bytes in raising {
            assert!(Parts::of(bytes).raises_stack() && !Parts::of(bytes).lowers_stack(), "{bytes:02x?}");
        }
        let lowering = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11];
        for (number, bytes) in others.into_iter().enumerate() {
            assert!(!Parts::of(bytes).raises_stack(), "{bytes:02x?}");
            assert_eq!(Parts::of(bytes).lowers_stack(), lowering.contains(&number), "{bytes:02x?}");
        }
    }
}
