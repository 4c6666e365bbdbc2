//! What the user chooses.

/// How contexts become copies.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    None,
    Direct,
    Machine(Dispatch),
    Shared,
    Full,
}

/// How a call chooses among ways.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// By whichever executes fewer instructions.
    #[default]
    Cheaper,
    Inline,
    Table,
}

/// Which contexts become copies, and how.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Cloning {
    pub form: Form,
    /// Every context in which anything is saved, whatever it is worth.
    pub everywhere: bool,
    /// Contexts that are looked at.
    pub max_contexts: usize,
    /// Instructions that must go for a context to have a body.
    pub least: u32,
}

impl Default for Cloning {
    fn default() -> Self {
        Cloning { form: Form::None, everywhere: false, max_contexts: 15_000, least: 1 }
    }
}

impl Cloning {
    pub fn is_off(self) -> bool {
        self.form == Form::None
    }
}
