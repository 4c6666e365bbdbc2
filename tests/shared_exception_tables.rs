//! Functions that stand side by side share an unwind entry and an exception table, and exceptions go where they went.

mod support;

use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection};
use support::{End, Run, SUCCESS, built, installed, relift, relift_succeeds, run, shrink, skipped};

/// Handlers that number their types in different orders, lists of types, code that exceptions pass with and without clean-up, and such that they must not pass.
const PROGRAM: &str = r#"
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <unwind.h>
#define APART __attribute__((noinline, noclone))
struct A { int x; }; struct B : A {}; struct C { long y; };
static volatile long noted;
struct Guard { long x; explicit Guard(long x) : x(x) { noted = noted + 1; } APART ~Guard() { noted = noted * 31 + x; } };
APART static int may_throw(int x) {
    switch (x % 11) {
    case 1: throw A{x};
    case 3: { B b; b.x = x; throw b; }
    case 4: throw C{x};
    case 6: throw std::runtime_error("six");
    case 8: throw x;
    default: return x * 3;
    }
}
template <int N> APART int passes(int x) { return may_throw(x + N) + N; }
template <int N> APART int cleans(int x) { Guard guard(N); return passes<N>(x) ^ N; }
template <int N> APART int ab(int x) { try { return cleans<N>(x); } catch (B &b) { return b.x + 1; } catch (C &c) { return (int)c.y + N; } }
template <int N> APART int ba(int x) { try { return cleans<N>(x); } catch (C &c) { return (int)c.y - N; } catch (A &a) { return a.x * 2; } }
template <int N> APART int any(int x) { try { Guard guard(x); return passes<N>(x); } catch (...) { noted = noted + N; return N; } }
template <int N> APART int again(int x) { try { return ab<N>(x); } catch (int &i) { if (i % 2) throw; return i; } }
template <int N> APART int listed(int x) throw(A, int, std::bad_exception) { return cleans<N>(x + 2); }
template <int N> APART int caught(int x) { try { return listed<N>(x); } catch (A &) { return 1; } catch (int) { return 2; } catch (std::bad_exception &) { return 3; } }
template <int N> APART int never(int x) noexcept { return cleans<N>(x); }
template <int N> int all(int x) {
    int sum = 0;
    for (int (*f)(int) : {passes<N>, cleans<N>, ab<N>, ba<N>, any<N>, again<N>, caught<N>}) {
        try { sum = sum * 7 + f(x); } catch (std::exception &e) { sum += (int)std::string(e.what()).size(); } catch (A &a) { sum ^= a.x; } catch (C &) { sum += 9; } catch (int i) { sum -= i; }
    }
    return sum;
}
static _Unwind_Reason_Code count(_Unwind_Context *context, void *frames) { if (_Unwind_GetIP(context)) ++*(int *)frames; return _URC_NO_REASON; }
int main(int count_of_words, char **) {
    std::set_unexpected([] { throw std::bad_exception(); });
    long sum = 0;
    for (int i = 0; i < 40; i++) sum = sum * 5 + all<1>(i) + all<2>(i) + all<5>(i) + all<6>(i) + all<7>(i) + all<9>(i);
    int frames = 0;
    _Unwind_Backtrace(count, &frames);
    std::printf("%ld %ld %d\n", sum, (long)noted, frames > 1);
    std::fflush(stdout);
    if (count_of_words > 1) return never<1>(2);
    return 42;
}
"#;

fn said(program: &Path, folder: &Path) -> [Run; 2] {
    [run(&mut Command::new(program), folder), run(Command::new(program).arg("to the end"), folder)]
}

/// How many entries the search table has.
fn num_entries(program: &Path) -> usize {
    let bytes = std::fs::read(program).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    file.section_by_name(".eh_frame_hdr").expect("the program has unwind entries").size() as usize / 8
}

#[test]
fn exceptions_go_where_they_went_however_many_functions_share_a_table() {
    for compiler in ["g++", "clang++"] {
        if !installed(compiler) {
            skipped(&format!("{compiler}: it is not installed"));
            continue;
        }
        for flags in [
            &["-O2", "-std=c++14", "-fPIE", "-pie", "-w"][..],
            &["-O1", "-std=c++14", "-fnon-call-exceptions", "-fPIE", "-pie", "-w"],
        ] {
            let folder = tempfile::tempdir().expect("a scratch folder can be made");
            let folder = folder.path();
            let input = built(PROGRAM, (compiler, "cc"), flags, folder);
            let before = said(&input, folder);
            assert_eq!(before[0].end, End::Exit(SUCCESS), "{compiler}: {before:?}");
            assert!(matches!(before[1].end, End::Signal(_)), "{compiler}: {before:?}");
            let mut counts = vec![num_entries(&input)];
            for percent in ["0", "2", "100"] {
                let (output, _) = shrink(&input, &["--slower", percent], percent, folder);
                assert_eq!(said(&output, folder), before, "{compiler}, {percent} %");
                counts.push(num_entries(&output));
                // Who relinks the output finds the functions, and shares entries again or not.
                let relinked = folder.join("relinked");
                for form in [&["optimize", "--shuffle", "3"][..], &["shrink", "--slower", "100"]] {
                    relift_succeeds(relift().args(form).arg("--verify").arg(&output).arg("-o").arg(&relinked), folder);
                    assert_eq!(said(&relinked, folder), before, "{compiler}, {percent} %, then {form:?}");
                }
            }
            // Handlers that number the same types in different orders can't share one.
            assert!(counts.is_sorted_by(|more, fewer| more >= fewer), "{compiler}: {counts:?}");
            assert!(counts[2] + 4 < counts[1] && counts[3] + 4 < counts[2], "{compiler}: {counts:?}");
        }
    }
}
