//! Values in words, for messages.

use super::super::expr::{Id, Node};
use super::Run;

impl Run<'_, '_, '_> {
    /// A value in words.
    pub(super) fn describe(&self, id: Id) -> String {
        self.describe_to(id, 3)
    }

    fn describe_to(&self, id: Id, depth: u32) -> String {
        let list = |list: &[Id]| {
            let each: Vec<String> = list.iter().take(4).map(|&id| self.describe_to(id, depth.saturating_sub(1))).collect();
            each.join(", ")
        };
        if depth == 0 {
            return "…".into();
        }
        match self.pool.node(id) {
            Node::Const(value) => format!("{value:#x}"),
            Node::ImageBase => "the image".into(),
            Node::Table(address) => format!("table {address:#x}"),
            Node::Frame => "cfa".into(),
            Node::Class(number) if *number > u32::MAX - 3 => "a segment".into(),
            Node::Class(number) => format!("value {number}"),
            Node::Slot(at, _) => format!("slot {}", slot_name(*at)),
            Node::Load(number, address, _) => format!("load {number} of [{}]", self.describe_to(*address, depth - 1)),
            Node::Fixed(place, _) => format!("the word at {place:#x}"),
            Node::Linear(constant, terms) => {
                let term = |&(id, factor): &(Id, u64)| match factor.cast_signed() {
                    1 => self.describe_to(id, depth - 1),
                    factor => format!("{factor}*{}", self.describe_to(id, depth - 1)),
                };
                let terms: Vec<String> = terms.iter().map(term).collect();
                format!("{}{:+#x}", terms.join("+"), constant.cast_signed())
            }
            Node::Zext(x) | Node::Sext(x) | Node::Trunc(x) | Node::Extract(x, _) => {
                format!("{} bits of {}", self.pool.width(id).min(self.pool.width(*x)), self.describe_to(*x, depth))
            }
            Node::Insert(x, y, _) => format!("{} with {}", self.describe_to(*x, depth - 1), self.describe_to(*y, depth - 1)),
            Node::Pieces(pieces) => format!("pieces {}", list(pieces)),
            Node::Op(op, args) => format!("{op:?}({})", list(args)),
            Node::Flag(flag, _, args) => format!("{flag:?} of ({})", list(args)),
            Node::Select(c, x, y) => format!("select({})", list(&[*c, *x, *y])),
            Node::Out(_, number, args) => format!("result {number} of ({})", list(args)),
        }
    }
}

pub(super) fn slot_name(at: i64) -> String {
    if at < 0 { format!("cfa-{:#x}", at.unsigned_abs()) } else { format!("cfa+{at:#x}") }
}
