//! Accesses in another order, for programs of which somebody says that they have no data races.
//!
//! **Assumption.** No thread and no signal handler can tell in which order the others' accesses are made, so all that counts is what each load reads. A load is named by its address and by how
//! many stores before it may overlap it ([`super::super::machine`]).
//!
//! **Method.** Each access of the output is one of the input's: same address, same size, same value. Of two accesses that may overlap, one of them a store, the order is the input's.

use super::super::expr::Pool;
use super::super::machine::{Event, Machine, are_apart};

/// By number in the output, the number in the input of each access; what is wrong, if one has none.
fn matched<'e>(input: &[Event], output: &'e [Event]) -> Result<Vec<usize>, Option<&'e Event>> {
    let mut is_free = vec![true; input.len()];
    let mut numbers = Vec::with_capacity(output.len());
    for event in output {
        let is_it = |at: &usize| {
            let other = &input[*at];
            is_free[*at] && (other.address, other.size, other.value) == (event.address, event.size, event.value)
        };
        let at = (0..input.len()).find(is_it).ok_or(Some(event))?;
        is_free[at] = false;
        numbers.push(at);
    }
    if input.len() == output.len() { Ok(numbers) } else { Err(output.last()) }
}

/// What is wrong with the output's accesses: the one that tells, if there is one.
pub(super) fn compare<'m>(pool: &Pool, input: &Machine, output: &'m Machine) -> Result<(), Option<&'m Event>> {
    let loads = matched(&input.loads, &output.loads)?;
    let stores = matched(&input.stores, &output.stores)?;
    for (at, store) in output.stores.iter().enumerate() {
        let crosses = |&before: &usize| stores[before] > stores[at] && !are_apart(pool, &output.stores[before], store);
        if (0..at).any(|before| crosses(&before)) {
            return Err(Some(store));
        }
    }
    for (load, &number) in output.loads.iter().zip(&loads) {
        let before = input.loads[number].others_before as usize;
        let is_other = |(at, store): (usize, &Event)| {
            (at < load.others_before as usize) != (stores[at] < before) && !are_apart(pool, store, load)
        };
        if output.stores.iter().enumerate().any(is_other) {
            return Err(Some(load));
        }
    }
    Ok(())
}
