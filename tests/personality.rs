//! Exception tables as personalities read them that read less than GCC's.

mod support;

use std::process::Command;

use support::{End, SUCCESS, compile, installed, relift, relift_succeeds, run, skipped};

/// A personality that takes what D's takes: landing pads that count from the function's start. It ends the program at any other base, and leaves the rest to the library's.
const STRICT: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <unwind.h>
extern "C" _Unwind_Reason_Code strict(int version, _Unwind_Action actions, _Unwind_Exception_Class kind, _Unwind_Exception *thrown, _Unwind_Context *context)
    __asm__("__gxx_personality_v0");
static long asked;
extern "C" _Unwind_Reason_Code strict(int version, _Unwind_Action actions, _Unwind_Exception_Class kind, _Unwind_Exception *thrown, _Unwind_Context *context) {
    static auto real = (decltype(&strict))dlsym(RTLD_NEXT, "__gxx_personality_v0");
    auto table = (const unsigned char *)_Unwind_GetLanguageSpecificData(context);
    if (table && *table != 0xff) abort();
    asked++;
    return real(version, actions, kind, thrown, context);
}
static volatile long noted;
struct Guard { long x; __attribute__((noinline)) ~Guard() { noted = noted * 31 + x; } };
__attribute__((noinline)) static void may_throw(long x) {
    if (x % 3 == 0) throw x;
    if (x % 5 == 0) throw "five";
}
template <long N> __attribute__((noinline)) long f(long a) {
    Guard one{a};
    for (long i = 0; i < 4; i++) {
        try { Guard two{a + i}; may_throw(a + i * N); noted = noted + 1; }
        catch (long thrown) { Guard three{thrown}; try { may_throw(thrown + 2 * N); } catch (const char *) { noted = noted ^ N; } }
    }
    may_throw(a * N + 1);
    return noted;
}
int main() {
    long sum = 0;
    for (long i = 0; i < 60; i++) {
        try { sum += f<1>(i) + f<2>(i) + f<4>(i) + f<7>(i); } catch (long thrown) { sum ^= thrown; } catch (const char *) { sum += 5; }
    }
    std::printf("%ld %ld\n", sum, (long)noted);
    return asked > 500 ? 42 : 1;
}
"#;

#[test]
fn landing_pads_count_from_where_their_code_starts_wherever_they_lie() {
    for compiler in ["g++", "clang++"] {
        if !installed(compiler) {
            skipped(&format!("{compiler}: it is not installed"));
            continue;
        }
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let (source, input, output) =
            (folder.path().join("strict.cpp"), folder.path().join("input"), folder.path().join("output"));
        std::fs::write(&source, STRICT).expect("the scratch folder can be written");
        compile(compiler, &["-O2", "-fPIE", "-pie", "-w"], &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
        let expected = run(&mut Command::new(&input), folder.path());
        assert_eq!(expected.end, End::Exit(SUCCESS), "{compiler}: {expected:?}");
        for seed in 0..12 {
            let seed = seed.to_string();
            relift_succeeds(relift().args(["optimize", "--shuffle", &seed]).arg(&input).arg("-o").arg(&output), folder.path());
            assert_eq!(run(&mut Command::new(&output), folder.path()), expected, "{compiler}, seed {seed}");
        }
    }
}

#[test]
fn a_cold_landing_pad_from_which_an_exception_comes_back_to_it_is_not_where_its_entry_starts() {
    if !installed("g++") {
        return skipped("a landing pad that lands on itself: there is no g++");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    let source = support::repository("fixtures/programs/lands_on_itself/lands_on_itself.cc");
    compile("g++", &["-O2", "-fPIE", "-pie", "-w"], &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    let mut train = relift();
    train.args(["train", "--json"]).arg(&input).arg("-o").arg(&output);
    let said = relift_succeeds(train.args(["--", "sh", "-c", "\"$1\" quietly || [ $? = 42 ]", "sh", "{}"]), folder.path());
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    assert!(report["transforms"]["layout"]["cold fragments"].as_u64() >= Some(2), "{report:#}");
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS), "{expected:?}");
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
}

#[test]
fn code_that_throws_to_a_jump_of_which_nothing_is_left_before_it_is_not_where_its_entry_starts() {
    if !installed("g++") {
        return skipped("a landing pad that is a jump to code that lands on it: there is no g++");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    let source = support::repository("fixtures/programs/lands_on_itself/lands_on_itself.cc");
    let flags = ["-O2", "-fPIE", "-pie", "-w", "-DSECOND_PAD=\".Ljump_\""];
    compile("g++", &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS), "{expected:?}");
    for seed in 0..12 {
        let seed = seed.to_string();
        relift_succeeds(relift().args(["optimize", "--shuffle", &seed]).arg(&input).arg("-o").arg(&output), folder.path());
        assert_eq!(run(&mut Command::new(&output), folder.path()), expected, "seed {seed}");
    }
}
