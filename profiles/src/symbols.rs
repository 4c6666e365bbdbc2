//! Places by function name and offset, as BOLT's profiles write them.
//!
//! **Problem.** BOLT's profiles name a place by a function symbol and an offset from it. Local symbols may share a name, so BOLT
//! numbers them: `name/1`, `name/2` in the order of their addresses, and where the symbol table says which source file a symbol comes
//! from, also `name/file.c/1`. Code without a symbol goes by the address of its unwind entry, `__BOLT_FDE_FUNCat` and the
//! address in hexadecimal digits; procedure linkage stubs are `name@PLT`.
//!
//! **Method.** One pass over the symbol table in the order of addresses gives each symbol all of its names. A name leads to an
//! address by hashing; an address leads to a name by bisection over functions. A name that is not there as written is tried without
//! its number, if only one symbol has the bare name: other producers of the format don't number.

use lifter::ir::Program;
use lifter::{Image, Va};
use object::elf;
use rustc_hash::FxHashMap;

/// The name that BOLT gives to code that only an unwind entry describes.
const UNWIND_PREFIX: &str = "__BOLT_FDE_FUNCat";

#[derive(Clone, Debug)]
struct Named {
    start: Va,
    end: Va,
    name: String,
}

/// The functions of an image by name and by address.
#[derive(Clone, Debug, Default)]
pub struct SymbolIndex {
    /// Ascending by start, one for each start.
    functions: Vec<Named>,
    by_name: FxHashMap<String, Va>,
    /// By bare name; `None` where several symbols have it.
    by_bare_name: FxHashMap<String, Option<Va>>,
}

impl SymbolIndex {
    pub fn build(image: &Image<'_>, program: &Program) -> Self {
        let mut index = SymbolIndex::default();
        index.add_symbols(image);
        index.add_ranges(program);
        index.functions.sort_by_key(|f| f.start);
        index.functions.dedup_by_key(|f| f.start);
        for next in 1..index.functions.len() {
            let limit = index.functions[next].start;
            let function = &mut index.functions[next - 1];
            function.end = if function.end <= function.start { limit } else { function.end.min(limit) };
        }
        index
    }

    fn add_symbols(&mut self, image: &Image<'_>) {
        // Local symbols follow the symbol of the file that they come from, in the order of the table.
        let mut file = "";
        let mut symbols = Vec::new();
        for symbol in image.symbols.values() {
            if symbol.st_type() == elf::STT_FILE {
                file = symbol.name;
            } else if symbol.has_address() && !symbol.name.is_empty() {
                let is_local = symbol.st_bind() == elf::STB_LOCAL;
                symbols.push((Va(symbol.st_value), symbol.st_type() != elf::STT_FUNC, is_local.then_some(file), symbol));
            }
        }
        symbols.sort_by_key(|&(address, is_data, ..)| (address, is_data));
        let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
        let mut number = |prefix: &str| {
            let next = match numbers.get_mut(prefix) {
                Some(last) => {
                    *last += 1;
                    *last
                }
                None => *numbers.entry(prefix.to_owned()).or_insert(1),
            };
            format!("{prefix}/{next}")
        };
        self.by_name.reserve(symbols.len());
        self.by_bare_name.reserve(symbols.len());
        for (address, is_data, file, symbol) in symbols {
            let name = match file {
                None => symbol.name.to_owned(),
                Some(file) => {
                    let name = number(symbol.name);
                    if !file.is_empty() {
                        self.by_name.entry(number(&format!("{}/{file}", symbol.name))).or_insert(address);
                    }
                    name
                }
            };
            let is_function = !is_data || symbol.st_type() == elf::STT_GNU_IFUNC;
            let function = is_function.then(|| name.clone());
            self.by_name.entry(name).or_insert(address);
            if is_data && !image.is_executable(address) {
                continue;
            }
            let bare = self.by_bare_name.entry(symbol.name.to_owned()).or_insert(Some(address));
            *bare = bare.filter(|&known| known == address);
            if let Some(name) = function {
                self.functions.push(Named { start: address, end: address + symbol.st_size, name });
            }
        }
    }

    /// Code that no symbol names.
    fn add_ranges(&mut self, program: &Program) {
        let mut known: Vec<Va> = self.functions.iter().map(|f| f.start).collect();
        known.sort_unstable();
        for range in &program.ranges {
            if known.binary_search(&range.start).is_err() {
                let name = format!("{UNWIND_PREFIX}{:x}", range.start.0);
                self.functions.push(Named { start: range.start, end: range.end, name });
            }
        }
    }

    /// The address of a place.
    pub fn resolve(&self, name: &str, offset: u64) -> Option<Va> {
        let start = self.start_of(name)?;
        start.0.checked_add(offset).map(Va)
    }

    fn start_of(&self, name: &str) -> Option<Va> {
        if let Some(&start) = self.by_name.get(name) {
            return Some(start);
        }
        if let Some(digits) = name.strip_prefix(UNWIND_PREFIX) {
            let digits = digits.split('/').next().unwrap_or(digits);
            return u64::from_str_radix(digits, 16).ok().map(Va);
        }
        let bare = name.split('/').next().unwrap_or(name);
        self.by_bare_name.get(bare).copied().flatten()
    }

    /// The function that holds an address, as its name, and the offset from it.
    pub fn locate(&self, at: Va) -> Option<(&str, u64)> {
        let after = self.functions.partition_point(|f| f.start <= at);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (at < function.end || at == function.start).then(|| (function.name.as_str(), at - function.start))
    }

    /// The start and end of the named function that holds an address.
    pub fn bounds(&self, at: Va) -> Option<(Va, Va)> {
        let after = self.functions.partition_point(|f| f.start <= at);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (at < function.end || at == function.start).then_some((function.start, function.end))
    }
}
