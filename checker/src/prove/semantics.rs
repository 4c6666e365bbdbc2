//! What instructions do to a [`Machine`] (Intel SDM vol. 2).
//!
//! Three classes. *Exact*: moves, sums, bitwise operations, shifts, comparisons, pushes and pops, conditional moves, moves of vectors. *Pure*, by a list of
//! names: the results are functions of the opcode, the immediate and the operands, and nobody looks into them; memory is read and written only where
//! the one memory operand says. *Opaque*: all the rest (locked and repeated instructions, fences, x87, system calls); both programs must do the same there.
//!
//! Of a pure instruction the first operand is a destination and a source, all others are sources (`mulx` has two destinations), and the implicit registers are those
//! that the disassembler lists. An instruction of integers writes all flags unless it is listed as writing none; those that leave some flags as they were
//! have the old flags among the inputs.

use super::aligned::Aligned;
use super::class::{Class, Effect, PRODUCT, effect_of, is_exclusive_or, is_vector_move, plain};
use super::decoded::{Decoded, Memory, Operand, Reg};
use super::expr::{Flag, FlagOf, Id, Node, Op, Pool};
use super::machine::{FLAGS, Machine, Privacy, Trouble};
use crate::decode::Kind;
use crate::image::Image;

/// What running needs besides the machine.
pub(super) struct Context<'c, 'a> {
    pub(super) pool: &'c mut Pool,
    pub(super) privacy: &'c Privacy,
    /// The input: memory that never changes is read there.
    pub(super) image: &'c Image<'a>,
    /// Keys of pure instructions, as numbers.
    pub(super) keys: &'c mut super::Keys,
    /// The instruction's address, and what its rip-relative operand stands for in the input.
    pub(super) at: u64,
    pub(super) place: Option<Place>,
}

/// What a rip-relative operand stands for in the input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(u64),
    /// A jump table that may lie elsewhere in the output.
    Table(u64),
}

impl Machine {
    pub(super) fn address(&self, context: &mut Context<'_, '_>, memory: Memory) -> Result<Id, Trouble> {
        let pool = &mut *context.pool;
        let mut sum = match (memory.place, context.place) {
            (Some(_), Some(Place::At(place))) => pool.image(place, context.image.is_position_dependent()),
            (Some(_), Some(Place::Table(table))) => pool.table(table),
            _ => pool.constant(memory.displacement, 64),
        };
        let mut width = 64;
        for (register, scale) in [(memory.base, 1), (memory.index, memory.scale)] {
            match register {
                None | Some(Reg::Pointer) => {}
                Some(Reg::General(number, bits, false)) => {
                    width = bits;
                    let value = self.general[usize::from(number & 15)];
                    sum = pool.add_scaled(sum, value, scale);
                }
                Some(_) => return Err(Trouble::Other("an address that is not understood".into())),
            }
        }
        if width != 64 {
            let low = pool.trunc(sum, width);
            sum = pool.zext(low, 64);
        }
        if memory.segment != 0 {
            let base = pool.make(Node::Class(u32::MAX - u32::from(memory.segment)), 64);
            sum = pool.add(sum, base);
        }
        Ok(sum)
    }

    fn load_at(&mut self, context: &mut Context<'_, '_>, memory: Memory, size: u16) -> Result<Id, Trouble> {
        let address = self.address(context, memory)?;
        if memory.segment == 0
            && let Some(value) = super::constant::load(context, address, size)
        {
            self.fixed_loads += 1;
            return Ok(value);
        }
        self.load(context.pool, context.privacy, address, size, context.at)
    }

    fn read(&mut self, context: &mut Context<'_, '_>, (operand, size): (Operand, u16)) -> Result<Id, Trouble> {
        match operand {
            Operand::Reg(Reg::General(number, width, is_second)) => Ok(self.read_general(context.pool, number, width, is_second)),
            Operand::Reg(Reg::Vector(number, width)) => Ok(context.pool.trunc(self.vectors[usize::from(number & 31)], width)),
            Operand::Reg(_) => Err(Trouble::Other("a register that is not followed".into())),
            Operand::Immediate(value) => Ok(context.pool.constant(value, size)),
            Operand::Memory(memory) => self.load_at(context, memory, size),
        }
    }

    fn write(&mut self, context: &mut Context<'_, '_>, operand: Operand, value: Id) -> Result<(), Trouble> {
        match operand {
            Operand::Reg(Reg::General(number, _, is_second)) => {
                self.write_general(context.pool, context.privacy, (number, is_second), value)
            }
            Operand::Memory(memory) => {
                let address = self.address(context, memory)?;
                self.store(context.pool, context.privacy, address, value, context.at)
            }
            _ => Err(Trouble::Other("a destination that is not followed".into())),
        }
    }

    /// Where an indirect call or jump goes.
    pub(super) fn target(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<Id, Trouble> {
        match inst.operands.first() {
            Some(&(operand, 64)) => self.read(context, (operand, 64)),
            _ => Err(Trouble::Other("a far transfer of control".into())),
        }
    }

    /// Runs an instruction that is exact or pure and does not transfer control.
    pub(super) fn step(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        if let Some((memory, size)) = inst.aligned_operand() {
            let address = self.address(context, memory)?;
            self.aligned.push(Aligned { address, size: u64::from(size / 8), at: context.at });
        }
        match inst.class() {
            _ if matches!(inst.inst.kind, Kind::Nop | Kind::EndBranch) => Ok(()),
            Class::Exact if is_vector_move(&inst.name) && inst.shape.map != 0 => self.move_vector(context, inst),
            Class::Exact if is_exclusive_or(&inst.name) => self.exclusive_or(context, inst),
            Class::Exact => self.exact(context, inst),
            Class::Pure => self.pure(context, inst),
            Class::Opaque => Err(Trouble::Other(format!("{} is not followed", inst.name))),
        }
    }

    fn exact(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        let operand =
            |at: usize| inst.operands.get(at).copied().ok_or_else(|| Trouble::Other(format!("{} lacks an operand", inst.name)));
        match inst.name.as_str() {
            "mov" | "movabs" => {
                let ((to, size), from) = (operand(0)?, operand(1)?);
                let value = self.read(context, (from.0, size))?;
                self.write(context, to, value)
            }
            "movzx" | "movsx" | "movsxd" => {
                let ((to, size), from) = (operand(0)?, operand(1)?);
                let value = self.read(context, from)?;
                let value = if inst.name == "movzx" { context.pool.zext(value, size) } else { context.pool.sext(value, size) };
                self.write(context, to, value)
            }
            "lea" => {
                let ((to, size), (from, _)) = (operand(0)?, operand(1)?);
                let Operand::Memory(memory) = from else { return Err(Trouble::Other("lea without an address".into())) };
                let value = self.address(context, Memory { segment: 0, ..memory })?;
                let value = context.pool.trunc(value, size);
                self.write(context, to, value)
            }
            "add" | "sub" | "cmp" | "and" | "or" | "xor" | "test" => self.arithmetic(context, inst, operand(0)?, operand(1)?),
            "inc" | "dec" | "neg" | "not" => self.unary(context, inst, operand(0)?),
            "shl" | "sal" | "shr" | "sar" => self.shift(context, inst),
            "imul" => {
                let (to, size) = operand(0)?;
                let x = self.read(context, operand(inst.operands.len() - 2)?)?;
                let (last, _) = operand(inst.operands.len() - 1)?;
                let y = self.read(context, (last, size))?;
                let value = context.pool.multiply(x, y);
                self.other_flags(context, b"imul", &[x, y], PRODUCT);
                self.write(context, to, value)
            }
            "push" => {
                let value = match inst.pushed_constant() {
                    Some(value) => context.pool.constant(value, 64),
                    None => self.read(context, operand(0)?)?,
                };
                self.push(context, value)
            }
            "pop" => {
                let (to, _) = operand(0)?;
                let value = self.pop(context)?;
                self.write(context, to, value)
            }
            "leave" => {
                let base = self.general[super::machine::BASE];
                self.write_general(context.pool, context.privacy, (4, false), base)?;
                let value = self.pop(context)?;
                self.write_general(context.pool, context.privacy, (5, false), value)
            }
            "xchg" => {
                let ((first, size), (second, _)) = (operand(0)?, operand(1)?);
                let (x, y) = (self.read(context, (first, size))?, self.read(context, (second, size))?);
                self.write(context, first, y)?;
                self.write(context, second, x)
            }
            "cdqe" | "cwde" => {
                let width = if inst.name == "cdqe" { 32 } else { 16 };
                let value = self.read_general(context.pool, 0, width, false);
                let value = context.pool.sext(value, width * 2);
                self.write_general(context.pool, context.privacy, (0, false), value)
            }
            "cdq" | "cqo" => {
                let width = if inst.name == "cqo" { 64 } else { 32 };
                let value = self.read_general(context.pool, 0, width, false);
                let count = context.pool.constant(u64::from(width) - 1, 8);
                let sign = context.pool.shift(Op::Sar, value, count);
                self.write_general(context.pool, context.privacy, (2, false), sign)
            }
            name if name.starts_with("set") => {
                let condition = self.condition(context.pool, inst.condition());
                let value = context.pool.zext(condition, 8);
                self.write(context, operand(0)?.0, value)
            }
            _ => {
                let ((to, size), from) = (operand(0)?, operand(1)?);
                let condition = self.condition(context.pool, inst.condition());
                let (new, old) = (self.read(context, (from.0, size))?, self.read(context, (to, size))?);
                let value = context.pool.select(condition, new, old);
                self.write(context, to, value)
            }
        }
    }

    fn push(&mut self, context: &mut Context<'_, '_>, value: Id) -> Result<(), Trouble> {
        let top = context.pool.add_const(self.general[4], 8u64.wrapping_neg());
        self.write_general(context.pool, context.privacy, (4, false), top)?;
        self.store(context.pool, context.privacy, top, value, context.at)
    }

    fn pop(&mut self, context: &mut Context<'_, '_>) -> Result<Id, Trouble> {
        let top = self.general[4];
        let value = self.load(context.pool, context.privacy, top, 64, context.at)?;
        let above = context.pool.add_const(top, 8);
        self.write_general(context.pool, context.privacy, (4, false), above)?;
        Ok(value)
    }

    fn arithmetic(
        &mut self,
        context: &mut Context<'_, '_>,
        inst: &Decoded,
        (to, size): (Operand, u16),
        from: (Operand, u16),
    ) -> Result<(), Trouble> {
        let x = self.read(context, (to, size))?;
        let y = self.read(context, (from.0, size))?;
        let pool = &mut *context.pool;
        let value = match inst.name.as_str() {
            "add" => pool.add(x, y),
            "sub" | "cmp" => pool.sub(x, y),
            "and" | "test" => pool.bitwise(Op::And, vec![x, y], size),
            "or" => pool.bitwise(Op::Or, vec![x, y], size),
            _ => pool.bitwise(Op::Xor, vec![x, y], size),
        };
        match inst.name.as_str() {
            "add" => self.sum_flags(pool, FlagOf::Add, x, y, value),
            "sub" | "cmp" => self.sum_flags(pool, FlagOf::Sub, x, y, value),
            _ => {
                let zero = pool.constant(0, 1);
                self.result_flags(pool, value);
                (self.flags[0], self.flags[5]) = (zero, zero);
                // What it is after these is not defined.
                let adjust = context.keys.number(inst.name.as_bytes());
                self.flags[2] = pool.flag(Flag::Adjust, FlagOf::Other(adjust), &[x, y, self.flags[2]]);
            }
        }
        if matches!(inst.name.as_str(), "cmp" | "test") { Ok(()) } else { self.write(context, to, value) }
    }

    fn result_flags(&mut self, pool: &mut Pool, value: Id) {
        for (at, flag) in [(1, Flag::Parity), (3, Flag::Zero), (4, Flag::Sign)] {
            self.flags[at] = pool.flag(flag, FlagOf::Result, &[value]);
        }
    }

    fn sum_flags(&mut self, pool: &mut Pool, of: FlagOf, x: Id, y: Id, value: Id) {
        self.result_flags(pool, value);
        let (x, y) = if of == FlagOf::Add { (x.min(y), x.max(y)) } else { (x, y) };
        for (at, flag) in [(0, Flag::Carry), (2, Flag::Adjust), (5, Flag::Overflow)] {
            self.flags[at] = pool.flag(flag, of, &[x, y]);
        }
    }

    /// All flags as functions of what an instruction read, and those that are no results of the old ones too, which it may leave.
    fn other_flags(&mut self, context: &mut Context<'_, '_>, key: &[u8], args: &[Id], results: &[Flag]) {
        let key = context.keys.number(key);
        let old = self.flags;
        for (at, flag) in FLAGS.into_iter().enumerate() {
            let mut args = args.to_vec();
            if !results.contains(&flag) {
                args.push(old[at]);
            }
            self.flags[at] = context.pool.flag(flag, FlagOf::Other(key), &args);
        }
    }

    fn unary(&mut self, context: &mut Context<'_, '_>, inst: &Decoded, (to, size): (Operand, u16)) -> Result<(), Trouble> {
        let x = self.read(context, (to, size))?;
        let pool = &mut *context.pool;
        let (one, zero) = (pool.constant(1, size), pool.constant(0, size));
        let carry = self.flags[0];
        let value = match inst.name.as_str() {
            "inc" => {
                let value = pool.add(x, one);
                self.sum_flags(pool, FlagOf::Add, x, one, value);
                self.flags[0] = carry;
                value
            }
            "dec" => {
                let value = pool.sub(x, one);
                self.sum_flags(pool, FlagOf::Sub, x, one, value);
                self.flags[0] = carry;
                value
            }
            "neg" => {
                let value = pool.sub(zero, x);
                self.sum_flags(pool, FlagOf::Sub, zero, x, value);
                value
            }
            _ => pool.bitwise(Op::Not, vec![x], size),
        };
        self.write(context, to, value)
    }

    fn shift(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        let Some(&(to, size)) = inst.operands.first() else { return Err(Trouble::Other("a shift of nothing".into())) };
        let x = self.read(context, (to, size))?;
        let count = match inst.operands.get(1) {
            Some(&(from, _)) => self.read(context, (from, 8))?,
            None => context.pool.constant(1, 8),
        };
        let pool = &mut *context.pool;
        let bound = pool.constant(if size == 64 { 63 } else { 31 }, 8);
        let count = pool.bitwise(Op::And, vec![count, bound], 8);
        let op = match inst.name.as_str() {
            "shr" => Op::Shr,
            "sar" => Op::Sar,
            _ => Op::Shl,
        };
        let value = pool.shift(op, x, count);
        match pool.as_const(count) {
            Some(0) => {}
            Some(_) => {
                self.other_flags(context, format!("{op:?}").as_bytes(), &[x, count], &[]);
                self.result_flags(context.pool, value);
                if let Some(carry) = context.pool.carry_of_shift(op, x, count) {
                    self.flags[0] = carry;
                }
            }
            None => self.other_flags(context, format!("{op:?}").as_bytes(), &[x, count], &[]),
        }
        self.write(context, to, value)
    }

    /// The value of a condition by its number in encodings, one bit.
    pub(super) fn condition(&self, pool: &mut Pool, number: u8) -> Id {
        let [carry, parity, _, zero, sign, overflow] = self.flags;
        let less = |pool: &mut Pool| pool.bitwise(Op::Xor, vec![sign, overflow], 1);
        let value = match number >> 1 {
            0 => overflow,
            1 => carry,
            2 => zero,
            3 => pool.bitwise(Op::Or, vec![carry, zero], 1),
            4 => sign,
            5 => parity,
            6 => less(pool),
            _ => {
                let less = less(pool);
                pool.bitwise(Op::Or, vec![less, zero], 1)
            }
        };
        if number & 1 == 1 { pool.negate(value) } else { value }
    }

    fn move_vector(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        let (to, from) = (inst.operands[0].0, inst.operands[1].0);
        let is_new = inst.shape.vector;
        let width = match (plain(&inst.name), to, from) {
            ("movss" | "movd", _, _) => 32,
            ("movsd" | "movq", _, _) => 64,
            (_, Operand::Reg(Reg::Vector(_, width)), _) | (_, _, Operand::Reg(Reg::Vector(_, width))) => width,
            _ => return Err(Trouble::Other(format!("{} of nothing", inst.name))),
        };
        let value = match from {
            Operand::Reg(Reg::Vector(number, _)) => context.pool.trunc(self.vectors[usize::from(number & 31)], width),
            Operand::Reg(Reg::General(number, _, false)) => self.read_general(context.pool, number, width, false),
            Operand::Memory(memory) => self.load_at(context, memory, width)?,
            _ => return Err(Trouble::Other(format!("{} from elsewhere", inst.name))),
        };
        match to {
            Operand::Reg(Reg::Vector(number, _)) => {
                let is_scalar = matches!(plain(&inst.name), "movss" | "movsd");
                let is_merge = is_scalar && matches!(from, Operand::Reg(_));
                let value = if is_merge { value } else { context.pool.zext(value, width.max(128)) };
                self.write_vector(context.pool, context.privacy, (number, is_new), value)
            }
            to => self.write(context, to, value),
        }
    }

    fn exclusive_or(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        let (Operand::Reg(Reg::Vector(number, width)), second) = (inst.operands[0].0, inst.operands[1].0) else {
            return Err(Trouble::Other(format!("{} of no vector", inst.name)));
        };
        if inst.operands.len() == 3 {
            let zero = context.pool.make(Node::Const(0), width);
            return self.write_vector(context.pool, context.privacy, (number, inst.shape.vector), zero);
        }
        let x = context.pool.trunc(self.vectors[usize::from(number & 31)], width);
        let y = self.read(context, (second, width))?;
        let value = context.pool.bitwise(Op::Xor, vec![x, y], width);
        self.write_vector(context.pool, context.privacy, (number, inst.shape.vector), value)
    }

    /// The bits that a scalar instruction reads of its last operand, by its name.
    fn scalar_width(name: &str) -> Option<u16> {
        let name = plain(name);
        if let Some(rest) = name.strip_prefix("cvt") {
            let rest = rest.strip_prefix('t').unwrap_or(rest);
            return if rest.starts_with("ss2") { Some(32) } else { rest.starts_with("sd2").then_some(64) };
        }
        let beginnings = ["add", "sub", "mul", "div", "min", "max", "sqrt", "comi", "ucomi"];
        let is_scalar = |end: &str| beginnings.iter().any(|beginning| name.strip_prefix(beginning) == Some(end));
        if is_scalar("ss") { Some(32) } else { is_scalar("sd").then_some(64) }
    }

    fn pure(&mut self, context: &mut Context<'_, '_>, inst: &Decoded) -> Result<(), Trouble> {
        let name = inst.name.as_str();
        let effect = effect_of(name);
        let is_comparison = ["comiss", "comisd", "ptest"].iter().any(|end| name.ends_with(end)) || name == "bt";
        let reads_first = !inst.shape.vector || is_comparison || name.starts_with("vfm") || name.starts_with("vfn");
        let scalar = Self::scalar_width(name);
        let mut key = name.as_bytes().to_vec();
        if effect.is_none() {
            key.extend(inst.opcode());
        }
        let mut args = vec![self.rest];
        let count = inst.operands.len();
        let mut address = None;
        for (at, &(operand, size)) in inst.operands.iter().enumerate() {
            let size = scalar.filter(|_| at + 1 == count && at > 0 && !matches!(operand, Operand::Immediate(_))).unwrap_or(size);
            key.push((size / 8) as u8);
            let value = match operand {
                Operand::Immediate(value) => {
                    key.extend(value.to_le_bytes());
                    continue;
                }
                Operand::Memory(memory) if at == 0 => {
                    let place = self.address(context, memory)?;
                    address = Some(place);
                    self.load(context.pool, context.privacy, place, size, context.at)?
                }
                Operand::Reg(_) if at == 0 && effect.is_none() && !reads_first => continue,
                Operand::Reg(Reg::General(..)) if at == 0 && effect.is_none() => continue,
                Operand::Reg(Reg::Vector(number, _)) if at == 0 && !is_comparison => self.vectors[usize::from(number & 31)],
                operand => {
                    let value = self.read(context, (operand, size))?;
                    context.pool.trunc(value, size)
                }
            };
            args.push(value);
        }
        let implicit = |list: &[Reg]| -> Vec<(u8, u16)> {
            let general = |register: &Reg| match *register {
                Reg::General(number, _, _) => Some((number, 0)),
                Reg::Vector(number, width) => Some((number, width)),
                _ => None,
            };
            list.iter().filter_map(general).collect()
        };
        let (mut read, mut written) = (implicit(&inst.reads), implicit(&inst.writes));
        if matches!(name, "mul" | "imul" | "div" | "idiv") {
            // `rax` and `rdx`, whatever the width.
            (read, written) = (Vec::new(), vec![(0, 0), (2, 0)]);
        }
        for &(number, width) in read.iter().chain(&written) {
            args.push(if width == 0 { self.general[usize::from(number & 15)] } else { self.vectors[usize::from(number & 31)] });
        }
        if matches!(effect, Some(Effect::Reads(_))) {
            args.push(self.flags[0]);
        }
        if args.iter().any(|&arg| context.pool.is_of_frame(arg)) {
            self.escapes(context.privacy)?;
        }
        let number = context.keys.number(&key);
        let mut output = 0;
        let mut out = |pool: &mut Pool, width: u16| {
            output += 1;
            pool.make(Node::Out(number, output, args.clone().into()), width)
        };
        if matches!(name, "div" | "idiv") {
            let trap = out(context.pool, 1);
            self.traps.push((trap, self.loads.len() as u32, self.stores.len() as u32));
        }
        let destinations = if name == "mulx" { 2 } else { usize::from(!is_comparison) };
        for &(operand, size) in inst.operands.iter().take(destinations) {
            match operand {
                // One operand alone is a source: results are in implicit registers.
                _ if matches!(name, "mul" | "div" | "idiv" | "imul") => {}
                Operand::Reg(Reg::Vector(number, _)) => {
                    let value = out(context.pool, 512);
                    self.vectors[usize::from(number & 31)] = value;
                }
                Operand::Memory(_) => {
                    let value = out(context.pool, size);
                    if let Some(address) = address {
                        self.store(context.pool, context.privacy, address, value, context.at)?;
                    }
                }
                Operand::Reg(Reg::General(number, ..)) if effect.is_none() => {
                    let value = out(context.pool, 64);
                    self.write_general(context.pool, context.privacy, (number, false), value)?;
                }
                operand => {
                    let value = out(context.pool, size);
                    self.write(context, operand, value)?;
                }
            }
        }
        for (number, width) in written {
            if width == 0 {
                let value = out(context.pool, 64);
                self.write_general(context.pool, context.privacy, (number, false), value)?;
            } else {
                self.vectors[usize::from(number & 31)] = out(context.pool, 512);
            }
        }
        let results = match effect {
            Some(Effect::None) => None,
            Some(Effect::Some(results) | Effect::Reads(results)) => Some(results),
            Some(Effect::All) => Some(&FLAGS[..]),
            None => (is_comparison || inst.writes.contains(&Reg::Flags)).then_some(&FLAGS[..]),
        };
        if let Some(results) = results {
            self.other_flags(context, &key, &args, results);
        }
        Ok(())
    }
}
