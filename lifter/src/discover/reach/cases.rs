//! Cases of jump tables to which nothing but the table leads, where nothing says how long that is.
//!
//! **Method.** A table has at least one entry, so its first word leads to a case, and with what that leads to more of the code is known. So the words are followed one by one, of all such tables in turns. A word is none of
//! a table's if something else begins there, which whatever was decoded names, or if it leads out of the function or into the middle of an instruction.
//!
//! That a word behind the end is taken for an entry needs a table that nothing names which was decoded so far, and a place in this very function that decodes like code and agrees with the rest. What jumps through a
//! table may reach is not decided here: the jump is asked again when the cases are known.
//!
//! Terminates: each turn decodes something, or leaves out a table.

use rustc_hash::FxHashSet;

use super::region::State;
use super::{Explored, region_at};
use crate::address::Va;
use crate::discover::stubs::Stubs;
use crate::elf::Image;

/// A table that is followed.
struct Cases {
    table: Va,
    /// How many of its words were followed.
    num_words: u64,
    /// The function that jumps through it, as far as is known where functions begin.
    function: (Va, Va),
}

impl Explored<'_> {
    /// Follows the words of tables through which jumps go, as `(jump, table)`; says whether anything is new. `named` is what else code names, ascending.
    pub(crate) fn try_cases(&mut self, image: &Image<'_>, jumps: &[(Va, Va)], named: &[Va], stubs: &Stubs) -> bool {
        let mut begins: Vec<Va> = self.regions.iter().flat_map(|region| region.entries.iter().copied()).collect();
        begins.sort_unstable();
        let mut tables: Vec<Cases> = jumps.iter().filter_map(|&(jump, table)| self.cases(jump, table, &begins)).collect();
        let mut also_named: FxHashSet<Va> = FxHashSet::default();
        let mut is_new = false;
        while !tables.is_empty() {
            tables.retain_mut(|cases| {
                let is_followed = self.take_turn(image, cases, (named, &mut also_named), stubs);
                is_new |= is_followed;
                is_followed
            });
        }
        is_new
    }

    /// `begins` are where functions begin, ascending.
    fn cases(&self, jump: Va, table: Va, begins: &[Va]) -> Option<Cases> {
        let region = &self.regions[region_at(&self.regions, jump)?];
        let next = begins.partition_point(|&entry| entry <= jump);
        let start = next.checked_sub(1).map_or(region.start, |last| begins[last].max(region.start));
        let end = begins.get(next).map_or(region.end(), |&entry| entry.min(region.end()));
        Some(Cases { table, num_words: 0, function: (start, end) })
    }

    /// Follows words up to the first that leads to something new; `false` if the table ends before.
    fn take_turn(
        &mut self,
        image: &Image<'_>,
        cases: &mut Cases,
        (named, also_named): (&[Va], &mut FxHashSet<Va>),
        stubs: &Stubs,
    ) -> bool {
        loop {
            let word = cases.table + 4 * cases.num_words;
            if cases.num_words > 0 && (named.binary_search(&word).is_ok() || also_named.contains(&word)) {
                return false;
            }
            let Some(distance) = image.read_u32(word) else { return false };
            let case = cases.table.offset(i64::from(distance as i32));
            if case < cases.function.0 || case >= cases.function.1 {
                return false;
            }
            let Some(region) = region_at(&self.regions, case) else { return false };
            cases.num_words += 1;
            match self.regions[region].state(case) {
                State::Start(_) => {}
                State::Inside => return false,
                State::Unknown if self.is_filler(case) => {
                    self.take_breakpoint(case);
                }
                State::Unknown => {
                    let Ok(found) = self.follow(case, stubs) else { return false };
                    also_named.extend(found.addresses.iter().copied());
                    self.try_found(found, stubs);
                    return true;
                }
            }
        }
    }
}
