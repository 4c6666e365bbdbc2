//! What the checker found, as data.

use std::fmt;

/// The rule that was broken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// Two instructions that must correspond have different effects.
    InstructionMismatch,
    /// Conditional branches that are neither equal nor inverted.
    ConditionMismatch,
    /// An operand names another data address than in the input.
    OperandMismatch,
    /// A branch or reference leaves the code, or its target does not decode.
    BadTarget,
    /// One input instruction stands for two output instructions, or the other way round.
    Conflict,
    /// A code address in the output is still the input's although the code has moved.
    StaleReference,
    /// A jump table entry does not lead where the input's leads.
    JumpTable,
    /// A word or byte of data differs and nothing explains it.
    DataChanged,
    /// A relocation is missing, new, or has another type, symbol or addend.
    Relocation,
    /// A dynamic symbol differs in more than a moved address, or a symbol does not name what it named.
    Symbol,
    /// Executable bytes of the output that correspond to nothing in the input.
    Unexplained,
    /// A function of the input that has no counterpart in the output.
    MissingFunction,
    /// The frame description at an instruction differs: presence, personality, or the registers' rules.
    UnwindRow,
    /// The exception handling at a call differs: landing pad, actions, types.
    CallSite,
    /// The unwind table or its search table is not well-formed.
    UnwindTable,
    /// An address that is called or jumped to indirectly lost its `endbr64` although the file claims IBT.
    IndirectBranchTarget,
    /// ELF header fields.
    Header,
    /// Program headers.
    Segment,
    /// Section headers.
    Section,
    /// The dynamic section.
    Dynamic,
}

/// A broken rule and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub kind: ViolationKind,
    /// An address of the output, unless the message says that it is the input's.
    pub address: u64,
    /// An address of the input whose code it is about too, if another than that at the address.
    pub input: Option<u64>,
    pub message: String,
}

impl Violation {
    pub(crate) fn new(kind: ViolationKind, address: u64, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.contains(char::is_control) {
            // Names come from the file, and a terminal obeys control characters.
            message = message.escape_debug().to_string();
        }
        Self { kind, address, input: None, message }
    }

    /// The same, about code of the input too.
    pub(crate) fn about(self, input: u64) -> Self {
        Self { input: Some(input), ..self }
    }

    /// The same, with the place that led there.
    pub(crate) fn from(mut self, origin: u64) -> Self {
        if origin != self.address {
            self.message.push_str(&format!(" (from {origin:#x})"));
        }
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// What is said of values has no bound, and what is said of a place should be a line.
        const LEN_MAX: usize = 320;
        let message = match self.message.char_indices().nth(LEN_MAX) {
            Some((end, _)) => &format!("{}…", &self.message[..end]),
            None => &self.message,
        };
        write!(f, "{:?} at {:#x}: {message}", self.kind, self.address)
    }
}

/// How much was compared.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions that were compared in pairs.
    pub instructions: u64,
    /// Of these, at another address than in the input.
    pub moved_instructions: u64,
    /// Pairs that a reference, a symbol or a slot gave.
    pub seeds: u64,
    pub jump_tables: u64,
    pub jump_table_entries: u64,
    /// Instructions at which unwind rows were compared.
    pub unwind_rows: u64,
    /// Of these, where they differ and nobody asks.
    pub unasked_rows: u64,
    /// Calls at which landing pads and actions were compared.
    pub call_sites: u64,
    /// Pieces of code that no reference reaches and that were matched by content.
    pub matched_by_content: u64,
    /// Output code bytes that are explained by nothing but being the same at the same address.
    pub identical_bytes: u64,
    pub code_bytes: u64,
    /// Functions of the input that nothing can name and that the output does not have.
    pub dropped_functions: u64,
    /// Places to which a proof was needed because instructions differ, and for which there is one.
    pub proven_roots: u64,
    /// Functions that were proven with constants that all their callers pass.
    pub entered_with_constants: u64,
    /// Straight pieces of code in which instructions differ and that were proven to do the same.
    pub changed_pieces: u64,
    /// In these: loads from and stores to private slots of the frame that are no more made.
    pub slot_loads_less: u64,
    pub slot_stores_less: u64,
    /// Loads from memory that never changes that are no more made.
    pub fixed_loads_less: u64,
    /// Loads that stand before a store at another place behind which they stood.
    pub loads_moved: u64,
    /// Branches that what is known decides and that are gone.
    pub branches_decided: u64,
    /// Registers that differ at a return, where nobody reads them.
    pub dead_registers: u64,
}

impl Stats {
    /// Adds what was proven of a piece.
    pub(crate) fn add_proven(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.changed_pieces += other.changed_pieces;
        self.slot_loads_less += other.slot_loads_less;
        self.slot_stores_less += other.slot_stores_less;
        self.fixed_loads_less += other.fixed_loads_less;
        self.loads_moved += other.loads_moved;
        self.branches_decided += other.branches_decided;
        self.dead_registers += other.dead_registers;
    }
}

/// What was found of the information for debuggers. A program in which it is wrong still does what it should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugReport {
    /// Instructions and single addresses of which it was compared.
    pub compared: u64,
    /// Of these, the ones at which it says something else than the input's, and whatever else in it is wrong.
    pub different: u64,
    /// The first of these, in words: [`DebugReport::MESSAGES_MAX`] at most.
    pub messages: Vec<String>,
}

impl DebugReport {
    pub const MESSAGES_MAX: usize = 50;

    pub(crate) fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.different += other.different;
        self.messages.extend(other.messages);
        self.messages.truncate(Self::MESSAGES_MAX);
    }

    /// The first difference, in words.
    #[must_use]
    pub fn first(&self) -> Option<&str> {
        self.messages.first().map(String::as_str)
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By address, then kind: the same on every run.
    pub violations: Vec<Violation>,
    pub stats: Stats,
    /// Whether all was compared; if not, there are violations, and may be more.
    pub is_whole: bool,
    /// None where a file has no information for debuggers, and where there are violations.
    pub debug: Option<DebugReport>,
}

impl Report {
    pub(crate) fn new(mut violations: Vec<Violation>, stats: Stats) -> Self {
        violations.sort_by(|a, b| (a.address, a.kind, &a.message).cmp(&(b.address, b.kind, &b.message)));
        violations.dedup();
        Self { violations, stats, is_whole: true, debug: None }
    }

    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// The first `limit` violations, one line each, and how many were left out.
    #[must_use]
    pub fn summary(&self, limit: usize) -> String {
        let mut text: String = self.violations.iter().take(limit).map(|violation| format!("{violation}\n")).collect();
        if self.violations.len() > limit {
            text.push_str(&format!("… and {} more\n", self.violations.len() - limit));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_a_line_however_much_is_said_of_values() {
        let long = Violation::new(ViolationKind::InstructionMismatch, 0x1000, "ü".repeat(1000)).to_string();
        assert!(long.chars().count() < 400 && long.ends_with('…'), "{long}");
        let short = Violation::new(ViolationKind::InstructionMismatch, 0x1000, "another").to_string();
        assert_eq!(short, "InstructionMismatch at 0x1000: another");
    }
}
