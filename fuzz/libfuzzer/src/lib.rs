//! What the seven programs share: one target of the library `fuzz` under libFuzzer, with the mutator that knows recipes.

pub use fuzz;
pub use libfuzzer_sys;

use fuzz::random::{Random, mutate};

/// Mutates `data[..size]` in place: one to four steps of the recipe mutator, or now and then libFuzzer's own mutation of plain bytes.
pub fn mutate_recipe(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut random = Random::new(u64::from(seed));
    if random.below(5) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let mut recipe = data[..size].to_vec();
    for _ in 0..1 + random.below(4) {
        mutate(&mut recipe, max_size, &mut random);
    }
    let len = recipe.len().min(max_size);
    data[..len].copy_from_slice(&recipe[..len]);
    len
}

/// A libFuzzer program for the named target.
#[macro_export]
macro_rules! fuzz_program {
    ($name:literal) => {
        use $crate::libfuzzer_sys::{fuzz_mutator, fuzz_target};

        fuzz_target!(|data: &[u8]| {
            $crate::fuzz::targets::Target::named($name).expect("the target is there").run(data);
        });

        fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate_recipe(data, size, max_size, seed)
        });
    };
}
