//! Jump tables, by data flow: what an indirect jump may reach.
//!
//! **Problem.** The entries of a PIC jump table are differences of addresses: the one kind of code pointer that no relocation and no
//! instruction names. A missed entry is a wrong program, one too many is a wasted word.
//!
//! **Method.** At each indirect jump of a cluster, ask [`values`](crate::cfg::values) where it goes. A sum of a table's address and a word of that table is a
//! switch; its entries are read from the start of the table to the first word that can't be one, which never ends too early: every
//! entry of a table the compiler made is the start of an instruction of the same cluster, of a split-off part that nothing else names, or the end of a unit (an unreachable
//! case). A complete 64-bit word can only hold an address that something else names. Anything else is unresolved.
//!
//! Found targets are new leaders and new edges, over which more jumps may become clear, so the cluster is asked again until
//! nothing changes. That ends: edges are only added, and a table's targets are bounded by the cluster's instructions.

use crate::address::Va;
use crate::cfg::body::Body;
use crate::cfg::values::{Evaluator, Value};
use crate::discover::clusters::Clusters;
use crate::discover::names::{NamedBy, Names};
use crate::discover::stubs::Stubs;
use crate::discover::survey::Survey;
use crate::discover::units::{Unit, Units, unit_at};
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::ir::TableBound;
use crate::x86::{Flow, flow_of};
use object::elf;

/// A switch's table as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTable {
    pub(crate) at: Va,
    /// 4: differences from the table's own address. 8: addresses.
    pub(crate) entry_size: u8,
    pub(crate) bound: TableBound,
    /// One per entry; an unreachable case repeats a reachable one.
    pub(crate) targets: Vec<Va>,
    /// The instructions that hold the table's address, ascending.
    pub(crate) named_at: Vec<Va>,
}

/// Where an indirect jump goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    Table(Va),
    /// To an address that something else names.
    Closed,
    Unresolved,
}

/// The answer for one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterJumps {
    /// `(jump, where)`, ascending.
    pub(crate) dispatches: Vec<(Va, Dispatch)>,
    /// Ascending by address.
    pub(crate) tables: Vec<RawTable>,
    /// Units outside the cluster that a table's entries reach.
    pub(crate) joins: Vec<Unit>,
    /// Every table of differences that any round met. Ascending.
    pub(crate) seen: Vec<Va>,
    /// Where jumps read whole addresses in a way that is not understood.
    pub(crate) open: Vec<Va>,
}

/// What all clusters share.
#[derive(Copy, Clone)]
pub(crate) struct TableContext<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
    pub(crate) stubs: &'i Stubs,
    pub(crate) names: &'i Names,
    pub(crate) clusters: &'i Clusters,
    /// Tables found in earlier rounds: where another one starts, a table ends. Ascending.
    pub(crate) known_tables: &'i [Va],
    pub(crate) use_static_relocs: bool,
}

/// Rounds over one cluster; each adds a table, so this bounds the depth of nested switches, not their number.
const MAX_ROUNDS: usize = 40;

impl TableContext<'_> {
    pub(crate) fn analyze(&self, members: &[Unit]) -> ClusterJumps {
        let mut body = Body::decode(self.image, self.units, members, self.names, self.stubs);
        let jumps: Vec<usize> = (0..body.instructions.len())
            .filter(|&i| flow_of(&body.instructions[i]) == Flow::IndirectJump && !body.instructions[i].is_ip_rel_memory_operand())
            .collect();
        let mut result = ClusterJumps::default();
        let mut seen = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let edges = result.edges();
            let targets: Vec<Va> = edges.iter().map(|e| e.1).collect();
            body.cut(&targets, self.names);
            body.connect(self.stubs, self.unwind, &edges, &result.closed_jumps());
            let next = self.round(&body, &jumps, &mut seen);
            let is_stable = next.dispatches == result.dispatches && next.tables == result.tables && next.seen == result.seen;
            result = next;
            // Code that only a call's return reaches shows that it returns, or that the compiler thought so.
            if is_stable && !body.let_calls_return() {
                self.doubt_orphans(&body, &mut result);
                return result;
            }
        }
        for dispatch in &mut result.dispatches {
            dispatch.1 = Dispatch::Unresolved;
        }
        result
    }

    /// Code that nothing reaches, in a cluster with tables, may be what a table reaches that was not read to its end: then the tables
    /// are not trusted.
    fn doubt_orphans(&self, body: &Body, result: &mut ClusterJumps) {
        if result.tables.iter().any(|t| t.entry_size == 4) && body.has_orphans() {
            for dispatch in result.dispatches.iter_mut().filter(|d| matches!(d.1, Dispatch::Table(_))) {
                dispatch.1 = Dispatch::Unresolved;
            }
        }
    }

    /// Asks every jump once. Tables are read after all jumps have answered: each ends at the latest where another one starts.
    fn round(&self, body: &Body, jumps: &[usize], seen: &mut Vec<Va>) -> ClusterJumps {
        let is_code = |va: Va| unit_at(self.units, va).is_some();
        let is_fixed = !self.image.kind.is_position_independent();
        let mut answers: Vec<(usize, Value, Vec<usize>)> = Vec::new();
        for &jump in jumps {
            let mut evaluator = Evaluator::new(body, &is_code, is_fixed);
            let value = evaluator.branch_target(jump);
            let mut trace: Vec<usize> = evaluator.trace.iter().copied().chain([jump]).collect();
            trace.sort();
            if let Value::Sum { base, table } = value
                && base == table
            {
                seen.push(table);
            }
            answers.push((jump, value, trace));
        }
        seen.sort();
        seen.dedup();
        let mut result = ClusterJumps { seen: seen.clone(), ..ClusterJumps::default() };
        for (jump, value, trace) in answers {
            let at = Va(body.instructions[jump].ip());
            let dispatch = match value {
                Value::Sum { base, table } if base == table => self.read_table(body, &trace, table, 4, &mut result),
                Value::Entry64 { table } if is_fixed => self.read_table(body, &trace, table, 8, &mut result),
                Value::Pointer | Value::Entry64 { .. } => Dispatch::Closed,
                Value::Address(va) if is_code(va) => Dispatch::Closed,
                _ => Dispatch::Unresolved,
            };
            // Where entries are complete words, each is known by itself, table or not.
            let is_closed = dispatch == Dispatch::Unresolved && matches!(value, Value::Entry64 { .. });
            if let (Value::Entry64 { table }, true) = (value, is_closed) {
                result.open.push(table);
            }
            result.dispatches.push((at, if is_closed { Dispatch::Closed } else { dispatch }));
        }
        result.tables.sort_by_key(|t| t.at);
        result.joins.sort();
        result.joins.dedup();
        result
    }

    fn read_table(&self, body: &Body, trace: &[usize], at: Va, entry_size: u8, result: &mut ClusterJumps) -> Dispatch {
        let named_at =
            trace.iter().filter(|&&i| names_address(&body.instructions[i], at)).map(|&i| Va(body.instructions[i].ip()));
        if let Some(known) = result.tables.iter_mut().find(|t| t.at == at && t.entry_size == entry_size) {
            known.named_at.extend(named_at);
            known.named_at.sort();
            known.named_at.dedup();
            return Dispatch::Table(at);
        }
        let named_at: Vec<Va> = named_at.collect();
        let cluster = self.clusters.find(unit_at(self.units, Va(body.instructions[0].ip())).unwrap_or(Unit::new(0)));
        let mut joins = Vec::new();
        let targets = self.read_entries(cluster, at, entry_size, &result.seen, &mut joins);
        if targets.is_empty() || named_at.is_empty() {
            return Dispatch::Unresolved;
        }
        result.joins.extend(joins);
        result.tables.push(RawTable { at, entry_size, bound: TableBound::Scanned, targets, named_at });
        Dispatch::Table(at)
    }

    /// The targets of all words from the table's start that may be entries of it.
    fn read_entries(&self, cluster: Unit, at: Va, entry_size: u8, seen: &[Va], joins: &mut Vec<Unit>) -> Vec<Va> {
        let Some(section) = self.image.section_at(at) else { return Vec::new() };
        let section = &self.image.sections[section];
        if section.is_executable() || section.is_writable() && entry_size == 4 || !section.has_bytes() {
            return Vec::new();
        }
        let after = |tables: &[Va]| tables.get(tables.partition_point(|&t| t <= at)).copied().unwrap_or(section.end());
        // A biased base may lie inside another table of addresses; differences are never biased.
        let limit = match entry_size {
            4 => section.end().min(after(self.known_tables)).min(after(seen)),
            _ => section.end(),
        };
        let mut entries: Vec<Entry> = Vec::new();
        let mut word = at;
        while word + u64::from(entry_size) <= limit {
            let Some(entry) = self.read_entry(cluster, at, word, entry_size) else { break };
            entries.push(entry);
            word = word + u64::from(entry_size);
        }
        while matches!(entries.last(), Some(Entry::Unreachable)) {
            entries.pop();
        }
        let stand_in = entries.iter().find_map(|e| match e {
            Entry::Inside(va) | Entry::Joined(va, _) => Some(*va),
            Entry::Unreachable => None,
        });
        let Some(stand_in) = stand_in else { return Vec::new() };
        entries
            .into_iter()
            .map(|entry| match entry {
                Entry::Inside(va) => va,
                Entry::Joined(va, unit) => {
                    joins.push(unit);
                    va
                }
                Entry::Unreachable => stand_in,
            })
            .collect()
    }

    fn read_entry(&self, cluster: Unit, table: Va, word: Va, entry_size: u8) -> Option<Entry> {
        if self.use_static_relocs && self.image.has_static_relocs() {
            let wanted = if entry_size == 8 { elf::R_X86_64_64 } else { elf::R_X86_64_PC32 };
            if !self.image.static_relocs_in(word, word + 1).iter().any(|r| r.r_type == wanted) {
                return None;
            }
        }
        let target = match entry_size {
            8 => Va(self.image.read_u64(word)?),
            _ => table.offset(i64::from(self.image.read_u32(word)? as i32)),
        };
        match unit_at(self.units, target) {
            Some(unit) if self.surveys[unit.index()].is_start(target - self.units[unit].start) => {
                if self.clusters.find(unit) == cluster {
                    return Some(Entry::Inside(target));
                }
                if self.ends_unit_of(cluster, target) {
                    return Some(Entry::Unreachable);
                }
                let by = self.names.at(self.units[unit].start);
                let is_known = by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL | NamedBy::BRANCH);
                let is_same_section = self.image.is_movable_code_section(self.units[unit].section);
                (!is_known && is_same_section && self.clusters.find(unit) == unit).then_some(Entry::Joined(target, unit))
            }
            _ => self.ends_unit_of(cluster, target).then_some(Entry::Unreachable),
        }
    }

    /// Whether a unit of the cluster ends at an address.
    fn ends_unit_of(&self, cluster: Unit, va: Va) -> bool {
        unit_at(self.units, Va(va.0.wrapping_sub(1))).is_some_and(|u| self.units[u].end == va && self.clusters.find(u) == cluster)
    }
}

#[derive(Copy, Clone, Debug)]
enum Entry {
    Inside(Va),
    Joined(Va, Unit),
    /// One past the end of a unit: a case that the compiler knows not to occur.
    Unreachable,
}

impl ClusterJumps {
    pub(crate) fn edges(&self) -> Vec<(Va, Va)> {
        let mut edges = Vec::new();
        for &(jump, dispatch) in &self.dispatches {
            let Dispatch::Table(at) = dispatch else { continue };
            let first = self.tables.partition_point(|t| t.at < at);
            for table in self.tables[first..].iter().take_while(|t| t.at == at) {
                edges.extend(table.targets.iter().map(|&target| (jump, target)));
            }
        }
        edges.sort();
        edges.dedup();
        edges
    }
    pub(crate) fn closed_jumps(&self) -> Vec<Va> {
        self.dispatches.iter().filter(|d| d.1 == Dispatch::Closed).map(|d| d.0).collect()
    }
    /// Whether a table of differences reaches past the start of one of these, which are ascending.
    pub(crate) fn is_cut_by(&self, tables: &[Va]) -> bool {
        self.tables.iter().filter(|t| t.entry_size == 4).any(|table| {
            let next = tables.partition_point(|&t| t <= table.at);
            tables.get(next).is_some_and(|&t| t < table.at + 4 * table.targets.len() as u64)
        })
    }
    pub(crate) fn has_unresolved(&self) -> bool {
        self.dispatches.iter().any(|d| d.1 == Dispatch::Unresolved)
    }
}

/// Whether an instruction holds this address in a field of its own.
fn names_address(instruction: &iced_x86::Instruction, va: Va) -> bool {
    if instruction.is_ip_rel_memory_operand() {
        return instruction.ip_rel_memory_address() == va.0;
    }
    let is_displacement = instruction.memory_displ_size() >= 4 && instruction.memory_displacement64() == va.0;
    let is_immediate = instruction.op_count() == 2
        && matches!(
            instruction.op1_kind(),
            iced_x86::OpKind::Immediate32 | iced_x86::OpKind::Immediate64 | iced_x86::OpKind::Immediate32to64
        )
        && instruction.immediate(1) == va.0;
    is_displacement || is_immediate
}
