//! Jump tables, by data flow: what an indirect jump may reach.
//!
//! **Problem.** The entries of a PIC jump table are differences of addresses: the one kind of code pointer that no relocation and no
//! instruction names. A missed entry is a wrong program, one too many is a wasted word.
//!
//! **Method.** At each indirect jump of a cluster, ask [`values`](crate::cfg::values) where it goes. A sum of an address and a word of a table
//! is a switch if the address is the table's own; [`entries`] reads the table from its start to the first word that can't be an entry. Where
//! the load counts its index from says nothing of the start: it may be another entry, or lie behind the end. A
//! complete 64-bit word can only hold an address that something else names. Anything else is unresolved, but where it counts from a label
//! (`&&label - &&base`) it reaches only what the words lead to.
//!
//! Found targets are new leaders and new edges, over which more jumps may become clear, so the cluster is asked again until
//! nothing changes. That ends: edges are only added, and a table's targets are bounded by the cluster's instructions.
//!
//! **Bounds.** On the graph that results, [`ranges`](crate::cfg::ranges) asks which entries the loads may read. Where that is exactly as many as
//! were read, the count is proven; where it is fewer, the reading is long enough. Where it is more, and all of those words lead to
//! instructions, the rest was a table too: it is read on, and the graph made anew. A proof assumes that the graph is complete: it counts only in clusters whose jumps are all
//! resolved. (That the tables' proofs may rest on each other is no circle: the first jump that left the graph would contradict the proof of its own
//! table, which holds on the path up to there.) A table whose end is in doubt and not proven makes its jumps unresolved; what they reach is
//! among what its words lead to.

mod ends;
mod entries;
pub(crate) mod exclusive;
mod in_vain;
mod merged;
mod other_uses;

use std::ops::Range;
use std::sync::Arc;

use iced_x86::{Mnemonic, OpKind, Register};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::Va;
use crate::cfg::body::Body;
use crate::cfg::ranges::Ranges;
use crate::cfg::tables::ends::is_bounded;
use crate::cfg::tables::entries::{Readings, Shape};
use crate::cfg::tables::in_vain::named_in_vain;
pub(crate) use crate::cfg::tables::merged::merge_tables;
pub(crate) use crate::cfg::tables::other_uses::Callees;
use crate::cfg::thunks::Thunks;
use crate::cfg::values::{Evaluator, Load, Numbers, Seen, VISITED_MAX, Value};
use crate::discover::clusters::Clusters;
use crate::discover::names::Names;
use crate::discover::stubs::Stubs;
use crate::discover::survey::Survey;
use crate::discover::units::{Unit, Units, unit_at};
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::ir::TableBound;
use crate::x86::{Flow, flow_of};

/// A switch's table as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTable {
    pub(crate) at: Va,
    /// 4: differences from `base`. 8: addresses.
    pub(crate) entry_size: u8,
    /// `at`, or 0 for addresses.
    pub(crate) base: Va,
    pub(crate) bound: TableBound,
    /// One per entry; an unreachable case repeats a reachable one.
    pub(crate) targets: Arc<[Va]>,
    /// The same, ascending, each once.
    pub(crate) distinct: Arc<[Va]>,
    /// Ends of units to which entries led that were taken for unreachable cases. Ascending.
    pub(crate) behind: Arc<[Va]>,
    /// The instructions that hold the table's address, ascending.
    pub(crate) named_at: Vec<Va>,
    /// Nothing else names its bytes.
    pub(crate) is_exclusive: bool,
    /// By its address code reads other things as well, so that what names the table can't name a copy of it.
    pub(crate) has_other_uses: bool,
}

impl RawTable {
    pub(crate) fn end(&self) -> Va {
        self.at + u64::from(self.entry_size) * self.targets.len() as u64
    }
}

/// Where an indirect jump goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    Table(Va),
    /// To an address that something else names.
    Closed,
    /// The same, read through a pointer, not from an array: from a word that the program made when it ran, as a threaded interpreter's instructions hold.
    Pointer,
    /// Through a table whose end is in doubt: into the cluster, or to `ClusterJumps::candidates`.
    Doubtful,
    Unresolved,
}

/// The answer for one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Units that doubtful jumps may reach.
    pub(crate) candidates: Vec<Unit>,
    /// Jumps through tables of differences whose end is in doubt, and the tables.
    pub(crate) doubted: Vec<(Va, Va)>,
    /// Some call or jump goes through a table of differences at an unknown place.
    pub(crate) has_relative_calls: bool,
    /// Places in code to which calls and jumps add a word of data to come to where they go.
    pub(crate) counted_from: Vec<Va>,
    /// Some jump goes where a register said when control arrived from another cluster by a jump or a branch: at a function, or at a part of this one.
    pub(crate) is_led_in: bool,
    /// More than [`JUMPS_MAX`] or [`COMPUTED_EDGES_MAX`], so that nothing was found out.
    pub(crate) is_too_large: bool,
}

/// What all clusters share.
#[derive(Copy, Clone)]
pub(crate) struct TableContext<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
    pub(crate) stubs: &'i Stubs,
    pub(crate) thunks: &'i Thunks,
    pub(crate) names: &'i Names,
    pub(crate) clusters: &'i Clusters,
    /// Tables found in earlier rounds: where another one starts, a table ends. Ascending.
    pub(crate) known_tables: &'i [Va],
    pub(crate) callees: &'i Callees,
    pub(crate) use_static_relocs: bool,
}

/// Rounds over one cluster; each adds a table, so this bounds the depth of nested switches, not their number.
const MAX_ROUNDS: usize = 40;

/// How many indirect jumps a cluster may have. An interpreter has thousands. Where code has no unwind entries and each function goes on by a jump, as GHC's, most of a program
/// is one cluster, with some 100,000.
const JUMPS_MAX: usize = 1 << 14;

/// How many edges may lead from jumps to labels that something else names, every jump to every label. Interpreters have up to 16 million of them.
const COMPUTED_EDGES_MAX: usize = 1 << 26;

/// How many bytes from a table's start a load may count its index from.
const BIAS_MAX: u64 = 1 << 16;

/// What one indirect jump or call turned out to be.
struct Answer {
    at: Va,
    site: Site,
    value: Value,
    is_led_in: bool,
    /// Instructions that took part, ascending.
    trace: Vec<usize>,
    loads: Vec<Load>,
}

impl Answer {
    /// Whether a word that takes part is chosen from others by an index.
    fn reads_by_index(&self, body: &Body) -> bool {
        let mut loads = self.trace.iter().map(|&index| &body.instructions[index]);
        loads.any(|load| matches!(load.mnemonic(), Mnemonic::Mov | Mnemonic::Jmp) && load.memory_index() != Register::None)
    }
}

/// An answer, and the instructions in whose blocks it was looked for; `None` if these are too many to remember.
struct Asked {
    answer: Answer,
    visited: Option<Vec<Range<u32>>>,
}

impl Asked {
    /// Whether the answer still holds where control arrives in another way at the instructions `changed`, which ascend.
    fn holds(&self, changed: &[u32]) -> bool {
        let is_untouched = |visited: &Range<u32>| {
            let next = changed.partition_point(|&at| at < visited.start);
            changed.get(next).is_none_or(|&at| at >= visited.end)
        };
        self.visited.as_ref().is_some_and(|visited| visited.iter().all(is_untouched))
    }
}

/// What the rounds over one cluster have learned.
#[derive(Default)]
struct Learned {
    /// By site, the answer of the last round.
    answers: Vec<Asked>,
    /// Tables of differences. Ascending.
    seen: Vec<Va>,
    /// How many entries tables have for sure.
    proven: FxHashMap<Va, u64>,
    /// How many entries of tables of addresses can be read, where more seem to be there: at a fixed address the tables of a function follow each other, and each would go on to the end of the last.
    ends: FxHashMap<Va, u64>,
    /// Tables of which an end was taken back.
    without_end: FxHashSet<Va>,
    readings: Readings,
}

/// A switch's table, what of it was read, and the loads of its entries.
struct Table {
    raw: RawTable,
    joins: Vec<Unit>,
    is_doubtful: bool,
    loads: Vec<Load>,
    /// The instructions by which the jumps through it were understood, ascending.
    uses: Vec<usize>,
}

impl TableContext<'_> {
    pub(crate) fn analyze(&self, members: &[Unit]) -> ClusterJumps {
        let mut body = Body::decode(self.image, self.units, members, self.names, self.stubs);
        body.follow_calls(self.image, self.units);
        let sites = self.sites(&body);
        let mut result = ClusterJumps::default();
        if sites.iter().filter(|site| site.1 == Site::Jump).count() > JUMPS_MAX {
            return ClusterJumps { dispatches: unresolved(&body, &sites), is_too_large: true, ..result };
        }
        let mut learned = Learned { readings: Readings::of(self, members), ..Learned::default() };
        for _ in 0..MAX_ROUNDS {
            let edges = result.edges();
            let targets: Vec<Va> = edges.iter().map(|e| e.1).collect();
            let before = body.cut(&targets, self.names);
            let computed = result.closed_jumps();
            if computed.len() * body.num_labels() > COMPUTED_EDGES_MAX {
                result.is_too_large = true;
                break;
            }
            body.connect(self.stubs, self.unwind, &edges, &computed);
            let changed = body.changed_arrivals(&before);
            drop(before);
            self.ask(&body, &sites, &changed, &mut learned.answers);
            let (next, mut tables) = self.round(&body, &mut learned);
            let is_stable = next == result;
            result = next;
            // Code that only a call's return reaches shows that it returns, or that the compiler thought so.
            if !is_stable || body.let_calls_return() {
                continue;
            }
            // What is named and then not used was used behind a call that was said not to return.
            if named_in_vain(&body, &tables).next().is_some() && body.let_all_calls_return(self.stubs) {
                continue;
            }
            let bounds = self.bounds(&body, &tables);
            if self.is_read_on(&body, &tables, &bounds, &mut learned) {
                continue;
            }
            if self.has_new_ends(&tables, &bounds, &result, &mut learned) {
                continue;
            }
            // Something empty may lie where a table begins. Which of the two an instruction means can't be told.
            for table in named_in_vain(&body, &tables) {
                self.distrust(table, &mut result);
            }
            let other_uses: Vec<bool> = tables.iter().map(|table| self.has_other_uses(&body, table)).collect();
            for (table, has_any) in tables.iter_mut().zip(other_uses) {
                table.raw.has_other_uses = has_any;
            }
            self.settle(tables, &bounds, &mut result);
            return result;
        }
        for dispatch in &mut result.dispatches {
            dispatch.1 = Dispatch::Unresolved;
        }
        result
    }

    /// The jumps and calls to ask about, with the register or operand that says where they go.
    fn sites(&self, body: &Body) -> Vec<(usize, Site)> {
        let site = |index: usize| {
            let instruction = &body.instructions[index];
            match flow_of(instruction) {
                Flow::IndirectJump if !instruction.is_ip_rel_memory_operand() => Some(Site::Jump),
                Flow::IndirectCall if instruction.op0_kind() == OpKind::Register => Some(Site::Call(instruction.op0_register())),
                Flow::Call(target) => self.thunks.register_of(target).map(Site::Call),
                Flow::Jump(target) => self.thunks.register_of(target).map(Site::ThunkJump),
                _ => None,
            }
        };
        (0..body.num_own).filter_map(|index| Some((index, site(index)?))).collect()
    }

    /// Asks every jump whose answer may have changed.
    fn ask(&self, body: &Body, sites: &[(usize, Site)], changed: &[u32], answers: &mut Vec<Asked>) {
        let is_code = |va: Va| unit_at(self.units, va).is_some();
        let numbers = match (self.image.kind.is_position_independent(), self.use_static_relocs) {
            (true, _) => Numbers::NoAddresses,
            (false, true) => Numbers::Relocated,
            (false, false) => Numbers::MayBeAddresses,
        };
        let is_table = |va: Va| self.may_begin(va);
        let mut searched = Seen::default();
        let mut ask = |&(index, site): &(usize, Site)| {
            answer(body, Evaluator::new(body, &mut searched, &is_code, &is_table, numbers), index, site)
        };
        if answers.is_empty() {
            answers.extend(sites.iter().map(ask));
            return;
        }
        for (asked, site) in answers.iter_mut().zip(sites).filter(|(asked, _)| !asked.holds(changed)) {
            *asked = ask(site);
        }
    }

    /// Tables are read after all jumps have answered: each ends at the latest where another one starts.
    fn round(&self, body: &Body, learned: &mut Learned) -> (ClusterJumps, Vec<Table>) {
        let answers = std::mem::take(&mut learned.answers);
        // Another table ends where this one starts, which need not be where its load begins to count.
        learned.seen.extend(answers.iter().filter_map(|asked| match asked.answer.value {
            Value::Sum { base, table } if self.is_own_base(base, table) => Some(base),
            _ => None,
        }));
        learned.seen.sort();
        learned.seen.dedup();
        let mut result = ClusterJumps { seen: learned.seen.clone(), ..ClusterJumps::default() };
        let mut tables: Vec<Table> = Vec::new();
        for asked in &answers {
            self.take(body, &asked.answer, learned, &mut result, &mut tables);
        }
        learned.answers = answers;
        tables.sort_by_key(|t| t.raw.at);
        result.tables = tables.iter().map(|t| t.raw.clone()).collect();
        result.joins = tables.iter().flat_map(|t| &t.joins).copied().collect();
        result.joins.sort();
        result.joins.dedup();
        (result, tables)
    }

    fn take(&self, body: &Body, answer: &Answer, learned: &mut Learned, result: &mut ClusterJumps, tables: &mut Vec<Table>) {
        let is_code = |va: Va| unit_at(self.units, va).is_some();
        let is_fixed = !self.image.kind.is_position_independent();
        let at = answer.at;
        let shape = match answer.value {
            // Entries count from the table's start, wherever the load counts its index from.
            Value::Sum { base, table } if self.is_own_base(base, table) => Some(Shape { at: base, base, entry_size: 4 }),
            Value::Sum { base, table } => Some(Shape { at: table, base, entry_size: 4 }),
            Value::Entry64 { table } if is_fixed => Some(Shape { at: table, base: Va(0), entry_size: 8 }),
            _ => None,
        };
        // A jump with an index is a switch whose table is not known; without one it is a call at the end of a function.
        let is_call = matches!(answer.site, Site::Call(_));
        result.is_led_in |= answer.is_led_in && !is_call;
        result.has_relative_calls |= match answer.value {
            Value::Relative { is_indexed } => is_call || !is_indexed,
            _ => false,
        };
        result.counted_from.extend(match answer.value {
            Value::Near { base, is_by_word: true } => Some(base),
            Value::Sum { base, .. } => Some(base).filter(|&base| is_code(base)),
            _ => None,
        });
        if answer.site != Site::Jump {
            // It is not made anew, so that its table stays, and with it what the table leads to.
            let dispatch = match (shape, answer.value) {
                (Some(shape), _) if shape.entry_size == 4 => self.doubt(shape, result),
                (_, Value::Several { base }) => self.doubt(Shape { at: base, base, entry_size: 4 }, result),
                (_, Value::Relative { .. } | Value::Other) if !is_call => Dispatch::Unresolved,
                _ => return,
            };
            result.dispatches.push((at, dispatch));
            return;
        }
        let dispatch = match (shape, answer.value) {
            (Some(shape), value) => match self.add_table(body, answer, shape, learned, tables) {
                true => Dispatch::Table(shape.at),
                // Where entries are complete words, each is known by itself, table or not.
                false if matches!(value, Value::Entry64 { .. }) => {
                    result.open.push(shape.at);
                    Dispatch::Closed
                }
                false => self.doubt(shape, result),
            },
            (None, Value::Pointer) if !answer.reads_by_index(body) => Dispatch::Pointer,
            (None, Value::Pointer | Value::Entry64 { .. }) => Dispatch::Closed,
            (None, Value::Address(va)) if is_code(va) => Dispatch::Closed,
            // One of several entries that were read ahead: all of them count from the same table.
            (None, Value::Several { base }) => self.doubt(Shape { at: base, base, entry_size: 4 }, result),
            // Computed from a place in code (unrolled loops): it stays near that place.
            (None, Value::Near { base, .. }) => {
                result.candidates.extend(unit_at(self.units, base));
                Dispatch::Doubtful
            }
            _ => Dispatch::Unresolved,
        };
        result.dispatches.push((at, dispatch));
    }

    /// A jump through a table that is not understood.
    fn doubt(&self, shape: Shape, result: &mut ClusterJumps) -> Dispatch {
        let candidates = self.candidates(shape);
        if candidates.is_empty() {
            return Dispatch::Unresolved;
        }
        result.candidates.extend(candidates);
        Dispatch::Doubtful
    }

    /// Reads a table, unless it is known already; `false` if it is none.
    fn add_table(&self, body: &Body, answer: &Answer, shape: Shape, learned: &mut Learned, tables: &mut Vec<Table>) -> bool {
        let names = |va: Va| {
            let named = answer.trace.iter().filter(move |&&i| names_address(&body.instructions[i], va));
            named.map(|&i| Va(body.instructions[i].ip())).collect::<Vec<Va>>()
        };
        let read_at = if let Value::Sum { table, .. } = answer.value { table } else { shape.at };
        let loads = answer.loads.iter().filter(|load| load.table == read_at);
        let named_at = names(shape.at);
        // Where a followed callee makes the address, others may call it for the same.
        let is_foreign = |&i: &usize| i >= body.num_own && names_address(&body.instructions[i], shape.at);
        if named_at.is_empty() || answer.trace.iter().any(is_foreign) {
            return false;
        }
        if let Some(known) = tables.iter_mut().find(|t| t.raw.at == shape.at) {
            if known.raw.entry_size != shape.entry_size || known.raw.base != shape.base {
                return false;
            }
            known.raw.named_at.extend(named_at);
            known.raw.named_at.sort();
            known.raw.named_at.dedup();
            known.loads.extend(loads);
            known.uses.extend(&answer.trace);
            known.uses.sort_unstable();
            known.uses.dedup();
            return true;
        }
        let cluster = self.cluster_of(body);
        // Differences of labels are not followed yet: who checks the output can't tell them from other data.
        if shape.base != shape.at && shape.entry_size == 4 {
            return false;
        }
        let proven = learned.proven.get(&shape.at).copied().unwrap_or(0);
        let end = learned.ends.get(&shape.at).copied();
        let reading = learned.readings.read(self, cluster, shape, (proven, end), &learned.seen);
        // The first entry may be in doubt already; a proof can still settle it.
        if reading.targets.is_empty() && !reading.is_doubtful {
            return false;
        }
        let Shape { at, base, entry_size } = shape;
        let raw = RawTable {
            at,
            entry_size,
            base,
            bound: TableBound::Scanned,
            targets: reading.targets,
            distinct: reading.distinct,
            behind: reading.behind,
            named_at,
            is_exclusive: false,
            has_other_uses: false,
        };
        let (loads, uses) = (loads.copied().collect(), answer.trace.clone());
        tables.push(Table { raw, joins: reading.joins, is_doubtful: reading.is_doubtful, loads, uses });
        true
    }

    /// Whether words are counted from the start of the table that they are in. The load may count its index from another entry: the first case.
    fn is_own_base(&self, base: Va, table: Va) -> bool {
        let bias = table.0.wrapping_sub(base.0) as i64;
        bias % 4 == 0 && bias.unsigned_abs() < BIAS_MAX && self.may_begin(base)
    }

    fn cluster_of(&self, body: &Body) -> Unit {
        let first = body.instructions.first().map_or(Va(0), |i| Va(i.ip()));
        self.clusters.find(unit_at(self.units, first).unwrap_or(Unit::new(0)))
    }

    /// How many entries each table's loads may read, where that can be told.
    fn bounds(&self, body: &Body, tables: &[Table]) -> Vec<Option<u64>> {
        let mut ranges = Ranges::new(body);
        let bounds = tables.iter().map(|table| {
            let mut loads = table.loads.clone();
            loads.sort_by_key(|l| l.at);
            loads.dedup();
            let start = table.raw.at.0;
            let mut bound = |load: &Load| {
                let bias = load.table.0.wrapping_sub(start) as i64 / i64::from(table.raw.entry_size) * i64::from(load.unit);
                ranges.small_max(load.index, load.at, bias).map(|max| max / u64::from(load.unit) + 1)
            };
            let counts: Option<Vec<u64>> = loads.iter().map(&mut bound).collect();
            counts?.into_iter().max()
        });
        bounds.collect()
    }

    /// Takes note of tables that go on behind what was read of them, because their loads do, and of those with entries that would be taken for impossible if their loads were not known to read them.
    fn is_read_on(&self, body: &Body, tables: &[Table], bounds: &[Option<u64>], learned: &mut Learned) -> bool {
        let cluster = self.cluster_of(body);
        let mut is_any = false;
        for (table, count) in tables.iter().zip(bounds) {
            let RawTable { at, base, entry_size, .. } = table.raw;
            let is_more = |&count: &u64| count > table.raw.targets.len() as u64 || self.leads_to_next(&table.raw);
            let Some(count) = count.filter(is_more) else { continue };
            let is_longer = self.has_entries(cluster, Shape { at, base, entry_size }, count, &learned.seen);
            if is_longer && learned.proven.get(&at).is_none_or(|&known| known < count) {
                learned.proven.insert(at, count);
                is_any = true;
            }
        }
        is_any
    }

    /// Whether entries lead where the function of a table ends and another one begins.
    fn leads_to_next(&self, table: &RawTable) -> bool {
        let begins = |&va: &Va| unit_at(self.units, va).is_some_and(|unit| self.units[unit].start == va);
        table.behind.iter().any(begins)
    }

    /// The last word on the tables: proven, scanned, or in doubt.
    fn settle(&self, mut tables: Vec<Table>, bounds: &[Option<u64>], result: &mut ClusterJumps) {
        // Where fewer entries can be read than seem to be there, the rest may be entries that no path selects.
        let is_exact = |table: &Table, count: &Option<u64>| *count == Some(table.raw.targets.len() as u64);
        let is_complete = self.is_complete(&tables, bounds, result);
        for (table, count) in tables.iter_mut().zip(bounds) {
            if is_complete && is_exact(table, count) {
                table.raw.bound = TableBound::Proven;
            } else if table.is_doubtful && !self.is_by_word(table) && !(is_complete && is_bounded(table, count)) {
                self.distrust(table, result);
            }
        }
        result.candidates.sort();
        result.candidates.dedup();
        // What a jump reads in a way that is not understood is no table; each of its words is known by itself.
        let is_open = |raw: &RawTable| raw.entry_size == 8 && !result.dispatches.iter().any(|d| d.1 == Dispatch::Table(raw.at));
        let (open, known): (Vec<RawTable>, Vec<RawTable>) = tables.into_iter().map(|t| t.raw).partition(is_open);
        result.open.extend(open.iter().map(|table| table.at));
        result.tables = known.into_iter().filter(|table| !table.targets.is_empty()).collect();
    }

    fn distrust(&self, table: &Table, result: &mut ClusterJumps) {
        let RawTable { at, base, entry_size, .. } = table.raw;
        let instead = if entry_size == 8 { Dispatch::Closed } else { Dispatch::Doubtful };
        for dispatch in result.dispatches.iter_mut().filter(|d| d.1 == Dispatch::Table(at)) {
            dispatch.1 = instead;
            result.doubted.extend((entry_size == 4).then_some((dispatch.0, at)));
        }
        if entry_size == 4 {
            result.candidates.extend(self.candidates(Shape { at, base, entry_size }));
        }
    }
}

/// What is asked about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Site {
    Jump,
    /// A call through a register, or of a thunk that goes where the register says.
    Call(Register),
    /// A jump to such a thunk.
    ThunkJump(Register),
}

/// The jumps among sites, as if nothing were known of any.
fn unresolved(body: &Body, sites: &[(usize, Site)]) -> Vec<(Va, Dispatch)> {
    let jumps = sites.iter().filter(|(_, site)| !matches!(site, Site::Call(_)));
    jumps.map(|&(index, _)| (Va(body.instructions[index].ip()), Dispatch::Unresolved)).collect()
}

fn answer(body: &Body, mut evaluator: Evaluator<'_>, index: usize, site: Site) -> Asked {
    let value = match site {
        Site::Jump => evaluator.branch_target(index),
        Site::Call(register) | Site::ThunkJump(register) => evaluator.register(register, index),
    };
    let mut trace: Vec<usize> = evaluator.trace.iter().copied().chain([index]).collect();
    trace.sort();
    let visited = Some(evaluator.visited).filter(|visited| visited.len() <= VISITED_MAX);
    let at = Va(body.instructions[index].ip());
    let answer = Answer { at, site, value, is_led_in: evaluator.is_led_in, trace, loads: evaluator.loads };
    Asked { answer, visited }
}

impl ClusterJumps {
    pub(crate) fn edges(&self) -> Vec<(Va, Va)> {
        self.edges_by(|table| &table.distinct)
    }
    /// The same to where unreachable cases seem to lead.
    pub(crate) fn edges_behind(&self) -> Vec<(Va, Va)> {
        self.edges_by(|table| &table.behind)
    }
    fn edges_by(&self, targets: impl Fn(&RawTable) -> &Arc<[Va]>) -> Vec<(Va, Va)> {
        let mut edges = Vec::new();
        for &(jump, dispatch) in &self.dispatches {
            let Dispatch::Table(at) = dispatch else { continue };
            let first = self.tables.partition_point(|t| t.at < at);
            for table in self.tables[first..].iter().take_while(|t| t.at == at) {
                edges.extend(targets(table).iter().map(|&target| (jump, target)));
            }
        }
        edges.sort();
        edges.dedup();
        edges
    }
    pub(crate) fn closed_jumps(&self) -> Vec<Va> {
        self.dispatches.iter().filter(|d| matches!(d.1, Dispatch::Closed | Dispatch::Pointer)).map(|d| d.0).collect()
    }
    /// Whether a table of differences reaches past the start of one of these, which are ascending.
    pub(crate) fn is_cut_by(&self, tables: &[Va]) -> bool {
        self.tables.iter().filter(|t| t.entry_size == 4).any(|table| {
            let next = tables.partition_point(|&t| t <= table.at);
            tables.get(next).is_some_and(|&t| t < table.end())
        })
    }
    /// Whether the cluster has a jump that is not understood.
    pub(crate) fn has_unresolved(&self) -> bool {
        self.dispatches.iter().any(|d| matches!(d.1, Dispatch::Unresolved | Dispatch::Doubtful))
    }
    /// Whether it has one that is not known to read a table.
    pub(crate) fn has_other_jumps(&self) -> bool {
        self.is_too_large || !self.dispatches.iter().all(|d| matches!(d.1, Dispatch::Table(_)))
    }
    /// Whether it has one that may reach whatever nothing else names.
    pub(crate) fn is_open(&self) -> bool {
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
