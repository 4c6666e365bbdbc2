//! The sound files that recipes damage: built by `fuzz/seeds/build.sh` from the fixtures, one for each kind that relift takes.

/// A sound ELF file.
#[derive(Copy, Clone, Debug)]
pub struct Seed {
    pub name: &'static str,
    pub bytes: &'static [u8],
}

macro_rules! seed {
    ($name:literal) => {
        Seed { name: $name, bytes: include_bytes!(concat!("../seeds/", $name)) }
    };
}

/// The programs and the shared object. Recipes name them by position: new ones go to the end.
pub const ELF: [Seed; 9] = [
    seed!("switch.elf"),
    seed!("goto.elf"),
    seed!("exceptions.elf"),
    seed!("fixed.elf"),
    seed!("fixed-relocs.elf"),
    seed!("ifunc.elf"),
    seed!("lld.elf"),
    seed!("tracked.elf"),
    seed!("static.elf"),
];

/// The profiles, and by position in [`ELF`] the program that each was made with.
pub const PROFILES: [(Seed, usize); 2] = [(seed!("switch.profile"), 0), (seed!("fixed.profile"), 3)];
