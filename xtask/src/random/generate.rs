//! Random C and C++ programs, made of what is hard to move.
//!
//! **Problem.** General generators of programs know no `switch`, no label addresses, no exceptions; those are what jump tables, computed jumps and
//! unwind tables are made from. **Method.** A program is a row of functions that call later ones only, of random statements on unsigned locals. Nothing is
//! undefined: shifts are masked, divisors odd, indices reduced, every variable set. Everything ends: each iteration, call and dispatch takes from one global
//! budget, and without budget a function returns. A checksum of all that happens is printed. The same seed gives the same program.

use std::fmt::Write;

/// The language of a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Cpp,
}

impl Language {
    pub(super) fn of_seed(seed: u64) -> Self {
        if seed.is_multiple_of(2) { Language::C } else { Language::Cpp }
    }
}

/// A repeatable stream of numbers (splitmix64).
#[derive(Debug)]
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

const LOCALS: usize = 5;
const DEPTH_MAX: usize = 4;

/// The source of the program of a seed.
pub(super) fn program(seed: u64, language: Language) -> String {
    let mut numbers = Numbers(seed);
    let num_functions = 6 + numbers.below(14);
    let mut writer = Writer {
        numbers,
        language,
        text: String::new(),
        num_functions,
        function: 0,
        indent: 1,
        labels: 0,
        budget: 0,
        has_labels: false,
    };
    writer.head();
    for function in (0..num_functions).rev() {
        writer.function(function);
    }
    writer.main();
    writer.text
}

struct Writer {
    numbers: Numbers,
    language: Language,
    text: String,
    num_functions: usize,
    /// The one that is being written.
    function: usize,
    indent: usize,
    labels: usize,
    /// Statements that the function may still have.
    budget: usize,
    /// It has a computed jump.
    has_labels: bool,
}

impl Writer {
    fn line(&mut self, line: &str) {
        let _written = writeln!(self.text, "{:1$}{line}", "", self.indent * 2);
    }

    fn open(&mut self, line: &str) {
        self.line(line);
        self.indent += 1;
    }

    fn close(&mut self, line: &str) {
        self.indent -= 1;
        self.line(line);
    }

    fn head(&mut self) {
        let common = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <stdarg.h>\n#include <setjmp.h>\n\
            typedef unsigned u; typedef u fn(u, u);\n\
            static long budget; static u sum; volatile u seen; static volatile double weight = 1.5;\n\
            static jmp_buf place; static int is_placed;\n\
            static inline u mix(u x) { sum = (sum << 5 | sum >> 27) ^ x; return x; }\n\
            __attribute__((noinline, cold)) u rare(u x) { seen += x; return mix(x ^ 0x5bd1e995u); }\n\
            __attribute__((noinline, cold, noreturn)) void lost(u x) { printf(\"lost %u\\n\", x); exit(3); }\n\
            __attribute__((noinline)) u many(u count, ...) { va_list list; u s = 0; va_start(list, count); while (count--) s += va_arg(list, u); va_end(list); return s; }\n\
            __attribute__((noinline)) const char *word(u x) { switch (x) { case 0: return \"zero\"; case 1: return \"one\"; case 2: return \"two\"; case 3: return \"three\"; case 4: return \"four\"; case 5: return \"five\"; default: return \"more\"; } }\n";
        self.text.push_str(common);
        if self.language == Language::Cpp {
            self.text.push_str(
                "#include <stdexcept>\n#include <string>\n#include <vector>\n#include <functional>\n\
                struct Guard { u x; Guard(u x) : x(x) {} ~Guard() { mix(x); } };\n\
                struct Shape { virtual u area(u x) const = 0; virtual ~Shape() { mix(1); } };\n\
                struct Square : Shape { u side; Square(u s) : side(s) {} u area(u x) const override { return side * side + x; } };\n\
                struct Round : Square { Round(u s) : Square(s) {} u area(u x) const override { switch (x % 6) { case 0: return 3; case 1: return side; case 2: return x ^ side; case 3: return mix(x); case 4: return 77; default: return Square::area(x); } } };\n\
                struct Problem : std::runtime_error { u code; Problem(u c) : std::runtime_error(\"problem\"), code(c) {} };\n",
            );
        }
        for function in 0..self.num_functions {
            let is_static = if function.is_multiple_of(3) { "" } else { "static " };
            let _written = writeln!(self.text, "{is_static}u f{function}(u, u);");
        }
    }

    fn function(&mut self, function: usize) {
        self.function = function;
        self.has_labels = false;
        self.budget = 12 + self.numbers.below(40);
        self.indent = 1;
        let attribute = *self.numbers.pick(&[
            "",
            "__attribute__((noinline)) ",
            "__attribute__((noinline)) ",
            "__attribute__((cold)) ",
            "__attribute__((hot)) ",
        ]);
        let is_static = if function.is_multiple_of(3) { "" } else { "static " };
        let _written = writeln!(self.text, "{attribute}{is_static}u f{function}(u a, u b) {{");
        self.line("if (budget <= 0) return a ^ b;");
        self.line("budget--;");
        self.line("u c = a + 3, d = b * 7, e = a ^ b;");
        self.line("(void)c; (void)d; (void)e;");
        if self.numbers.once_in(6) {
            let size = 1 + self.numbers.below(40);
            self.line(&format!("u room[(a & 7) + {size}]; memset(room, 1, sizeof room); e += room[b % {size}];"));
        }
        let count = 3 + self.numbers.below(6);
        for _ in 0..count {
            self.statement(0);
        }
        let result = self.expression(2);
        if let Some(callee) = self.callee().filter(|_| self.numbers.once_in(2)) {
            self.line(&format!("return {callee}({result}, mix(c));"));
        } else {
            self.line(&format!("return mix({result});"));
        }
        self.text.push_str("}\n");
    }

    /// A function that may be called from the one that is written.
    fn callee(&mut self) -> Option<String> {
        let after = self.function + 1;
        (after < self.num_functions).then(|| format!("f{}", after + self.numbers.below(self.num_functions - after)))
    }

    fn local(&mut self) -> &'static str {
        let names: [&'static str; LOCALS] = ["a", "b", "c", "d", "e"];
        names[self.numbers.below(LOCALS)]
    }

    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 || self.numbers.once_in(4) {
            return match self.numbers.below(3) {
                0 => format!("{}u", self.numbers.next() as u32 >> self.numbers.below(30)),
                _ => self.local().to_owned(),
            };
        }
        let (left, right) = (self.expression(depth - 1), self.expression(depth - 1));
        match self.numbers.below(9) {
            0 => format!("({left} + {right})"),
            1 => format!("({left} - {right})"),
            2 => format!("({left} * {right})"),
            3 => format!("({left} / ({right} | 1))"),
            4 => format!("({left} % ({right} | 1))"),
            5 => format!("({left} << ({right} & 15))"),
            6 => format!("({left} >> ({right} & 15))"),
            7 => format!("({left} < {right} ? {left} : ~{right})"),
            _ => format!("({left} ^ {right})"),
        }
    }

    fn block(&mut self, depth: usize) {
        for _ in 0..1 + self.numbers.below(3) {
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: usize) {
        if depth > DEPTH_MAX || self.budget == 0 {
            return self.assignment();
        }
        self.budget -= 1;
        match self.numbers.below(24) {
            0..=2 => self.choice(depth),
            3..=4 => self.repeat(depth),
            5..=9 => self.switch(depth),
            10 if self.may_have_labels() => self.computed_goto(),
            11 if self.may_have_labels() => self.threaded_code(),
            12..=13 => self.call(),
            14 => self.call_by_table(),
            15 => self.rare_path(),
            16 => self.values(),
            17 => self.long_jump(),
            18..=19 if self.language == Language::Cpp => self.attempt(depth),
            20 if self.language == Language::Cpp => self.objects(),
            21 if self.language == Language::Cpp => self.closure(),
            _ => self.assignment(),
        }
    }

    fn assignment(&mut self) {
        let (local, value) = (self.local(), self.expression(2));
        let operator = *self.numbers.pick(&["=", "+=", "^=", "-="]);
        self.line(&format!("{local} {operator} {value};"));
    }

    fn choice(&mut self, depth: usize) {
        let (left, right) = (self.expression(1), self.expression(1));
        self.open(&format!("if ({left} > {right}) {{"));
        self.block(depth + 1);
        self.close("} else {");
        self.indent += 1;
        self.block(depth + 1);
        self.close("}");
    }

    fn repeat(&mut self, depth: usize) {
        let (count, name) = (2 + self.numbers.below(9), self.fresh("i"));
        self.open(&format!("for (u {name} = 0; {name} < {count} && budget > 0; {name}++) {{"));
        self.line(&format!("budget--; e += {name};"));
        self.block(depth + 1);
        if self.numbers.once_in(3) {
            self.line("if (e % 11 == 0) continue;");
        }
        if self.numbers.once_in(4) {
            self.line("if (d % 13 == 5) break;");
        }
        self.close("}");
    }

    fn fresh(&mut self, prefix: &str) -> String {
        self.labels += 1;
        format!("{prefix}{}", self.labels)
    }

    fn switch(&mut self, depth: usize) {
        let more = if self.numbers.once_in(4) { 40 } else { 10 };
        let count = 4 + self.numbers.below(more);
        let first = *self.numbers.pick(&[0i64, 0, 1, 5, 100, -3, -20, 1000]);
        let value = self.expression(2);
        // What the value ranges over, and whether the compiler can see that.
        let is_complete = self.numbers.once_in(3);
        let range = if is_complete { count } else { count + self.numbers.below(6) };
        let kind = *self.numbers.pick(&["int", "long", "short", "int", "long long", "signed char"]);
        let kind = if kind == "signed char" && (first.abs() > 60 || count > 50) { "int" } else { kind };
        let name = self.fresh("s");
        self.line(&format!("{kind} {name} = ({kind})((long)(({value}) % {range}u) + {first});"));
        if self.numbers.once_in(3) {
            self.line(&format!("__asm__ volatile (\"\" : \"+r\"({name}));"));
        }
        self.open(&format!("switch ({name}) {{"));
        let is_sparse = self.numbers.once_in(4);
        let mut index = 0;
        while index < count {
            if is_sparse && !is_complete && index + 1 < count && self.numbers.once_in(3) {
                index += 1;
                continue;
            }
            let until = if self.numbers.once_in(8) { (index + self.numbers.below(4)).min(count - 1) } else { index };
            match until > index {
                true => self.open(&format!("case {} ... {}:", first + index as i64, first + until as i64)),
                false => self.open(&format!("case {}:", first + index as i64)),
            }
            index = until + 1;
            self.case_body(depth, index >= count);
            self.indent -= 1;
        }
        match self.numbers.below(4) {
            0 if is_complete => self.line("default: __builtin_unreachable();"),
            0 => self.line("default: e ^= 0x1234; break;"),
            1 => self.line("default: mix(rare(a)); break;"),
            2 => self.line("default: break;"),
            _ => {}
        }
        self.close("}");
    }

    fn case_body(&mut self, depth: usize, is_last: bool) {
        match self.numbers.below(10) {
            0 => self.line("mix(a);"),
            1 => return self.line("mix(b); return c ^ d;"),
            2 => {
                if let Some(callee) = self.callee() {
                    return self.line(&format!("return {callee}(d, e);"));
                }
            }
            3 => {
                self.line("{");
                self.indent += 1;
                self.statement(depth + 2);
                self.close("}");
            }
            4 => self.line("e += rare(e);"),
            5 => self.line("seen++; if (seen == 0xffffffffu) lost(a);"),
            _ => self.assignment(),
        }
        // Now and then a case falls into the next, but never into a default that the compiler may take for impossible.
        if is_last || !self.numbers.once_in(5) {
            self.line("break;");
        }
    }

    fn computed_goto(&mut self) {
        let count = 3 + self.numbers.below(6);
        let group = self.fresh("g");
        let labels: Vec<String> = (0..count).map(|i| format!("{group}_{i}")).collect();
        let value = self.expression(2);
        self.open("{");
        if self.numbers.once_in(2) {
            let list: Vec<String> = labels.iter().map(|label| format!("&&{label}")).collect();
            self.line(&format!("static const void *const {group}[] = {{ {} }};", list.join(", ")));
            self.line(&format!("goto *{group}[({value}) % {count}u];"));
        } else {
            let list: Vec<String> =
                labels.iter().map(|label| format!("(int)((char *)&&{label} - (char *)&&{})", labels[0])).collect();
            if self.language == Language::C {
                self.line(&format!(
                    "static const int {group}[] = {{ {} }};",
                    list.join(", ").replace("(int)((char *)", "((char *)")
                ));
                self.line(&format!("goto *(void *)((char *)&&{} + {group}[({value}) % {count}u]);", labels[0]));
            } else {
                let list: Vec<String> = labels.iter().map(|label| format!("&&{label}")).collect();
                self.line(&format!("const void *{group}[] = {{ {} }};", list.join(", ")));
                self.line(&format!("goto *{group}[({value}) % {count}u];"));
            }
        }
        for label in &labels {
            self.line(&format!("{label}:"));
            self.flat_statement();
            if self.numbers.once_in(2) {
                self.line(&format!("goto {group}_end;"));
            }
        }
        self.line(&format!("{group}_end: mix(e);"));
        self.close("}");
    }

    /// In C++ no computed jump may be able to skip a declaration, whichever label it leads to: a function has one group of labels only.
    fn may_have_labels(&mut self) -> bool {
        let may = self.language == Language::C || !self.has_labels;
        self.has_labels = true;
        may
    }

    /// A statement without a declaration that a jump to a later label would skip.
    fn flat_statement(&mut self) {
        match self.numbers.below(4) {
            0 => self.line("e += mix(d) * 3;"),
            1 => self.line("d ^= rare(b);"),
            _ => self.assignment(),
        }
    }

    /// A machine that dispatches from each of its operations.
    fn threaded_code(&mut self) {
        let count = 3 + self.numbers.below(8);
        let group = self.fresh("m");
        self.open("{");
        let list: Vec<String> = (0..count).map(|i| format!("&&{group}_{i}")).collect();
        let code: Vec<String> = (0..8 + self.numbers.below(20)).map(|_| self.numbers.below(count).to_string()).collect();
        self.line(&format!("static const void *const {group}[] = {{ {} }};", list.join(", ")));
        self.line(&format!("static const unsigned char {group}_code[] = {{ {} }};", code.join(", ")));
        self.line(&format!("u pc = a % {}u;", code.len()));
        let dispatch =
            format!("if (--budget <= 0 || pc >= {len}u) goto {group}_end; goto *{group}[{group}_code[pc++]];", len = code.len());
        self.line(&dispatch);
        for index in 0..count {
            self.line(&format!("{group}_{index}:"));
            self.flat_statement();
            self.line(&dispatch);
        }
        self.line(&format!("{group}_end: mix(pc);"));
        self.close("}");
    }

    fn call(&mut self) {
        let (local, left, right) = (self.local(), self.expression(1), self.expression(1));
        match self.callee() {
            Some(callee) => self.line(&format!("{local} += {callee}({left}, {right});")),
            None => self.line(&format!("{local} += many(3u, {left}, {right}, {local});")),
        }
    }

    fn call_by_table(&mut self) {
        let Some(first) = self.callee() else { return self.assignment() };
        let more: Vec<String> = (0..1 + self.numbers.below(5)).filter_map(|_| self.callee()).collect();
        let (name, value, local) = (self.fresh("p"), self.expression(1), self.local());
        let count = 1 + more.len();
        let qualifier = *self.numbers.pick(&["static fn *const", "static fn *", "fn *"]);
        self.open("{");
        self.line(&format!("{qualifier} {name}[] = {{ {first}{} }};", more.iter().map(|m| format!(", {m}")).collect::<String>()));
        self.line(&format!("{local} += {name}[({value}) % {count}u](d, e);"));
        self.close("}");
    }

    fn rare_path(&mut self) {
        let number = self.numbers.next() as u32;
        self.open(&format!("if (__builtin_expect(e == {number}u, 0)) {{"));
        self.line("rare(d);");
        self.line("lost(a);");
        self.close("}");
    }

    fn values(&mut self) {
        match self.numbers.below(3) {
            0 => self.line("{ double w = weight * (a & 1023) + 0.25 * (b & 255); mix((u)(w * 4)); }"),
            1 => self.line("{ const char *w = word(c % 8); mix((u)strlen(w) * (unsigned char)w[0]); }"),
            _ => self.line("mix(many(4u, a, b, c, d));"),
        }
    }

    fn long_jump(&mut self) {
        if self.language == Language::Cpp {
            return self.assignment();
        }
        self.line("if (is_placed && a % 97 == 3) { is_placed = 0; longjmp(place, 1); }");
    }

    fn attempt(&mut self, depth: usize) {
        self.open("try {");
        self.line("Guard guard(a);");
        let number = 2 + self.numbers.below(7);
        self.block(depth + 1);
        match self.numbers.below(3) {
            0 => self.line(&format!("if (e % {number} == 0) throw Problem(b);")),
            1 => self.line(&format!("if (d % {number} == 1) throw (int)(c & 0xff);")),
            _ => self.line(&format!("switch (c % {number}) {{ case 0: throw Problem(c); case 1: throw 7; case 2: e++; break; case 3: throw 'x'; case 4: d++; break; default: mix(d); }}")),
        }
        self.close("} catch (const Problem &problem) {");
        self.indent += 1;
        self.line("mix(problem.code);");
        self.statement(depth + 2);
        self.close("} catch (int number) {");
        self.indent += 1;
        self.line("e ^= mix((u)number);");
        if self.numbers.once_in(2) {
            self.close("} catch (...) { d += 5; }");
        } else {
            self.close("} catch (char) { mix(9); }");
        }
    }

    fn objects(&mut self) {
        let (one, other, name) = (self.expression(1), self.expression(1), self.fresh("o"));
        self.open("{");
        self.line(&format!("Shape *{name} = e & 1 ? (Shape *)new Square({one}) : new Round({other});"));
        self.line(&format!("d += {name}->area(b); delete {name};"));
        self.line(&format!(
            "static const std::string {name}_name = std::string(\"n\") + word(a % 7); mix((u){name}_name.size());"
        ));
        self.close("}");
    }

    fn closure(&mut self) {
        let (value, name) = (self.expression(2), self.fresh("l"));
        self.line(&format!("{{ std::function<u(u)> {name} = [&](u x) {{ return mix(x + ({value})); }}; std::vector<u> v(a & 7, b); for (u x : v) c ^= {name}(x); }}"));
    }

    fn main(&mut self) {
        self.indent = 1;
        self.text.push_str("int main(void) {\n");
        let rounds = 20 + self.numbers.below(60);
        self.open(&format!("for (volatile u round = 0; round < {rounds}; round++) {{"));
        for function in 0..self.num_functions.min(5) {
            self.line("budget = 3000;");
            let call = format!("mix(f{function}(round * 2654435761u, round ^ sum));");
            match self.language {
                Language::C => self.line(&format!("is_placed = 1; if (!setjmp(place)) {call} is_placed = 0;")),
                Language::Cpp => self.line(&format!("try {{ {call} }} catch (...) {{ mix(17); }}")),
            }
        }
        self.line("if (round % 8 == 0) printf(\"%u %08x\\n\", round, sum);");
        self.close("}");
        self.line("printf(\"%08x %u\\n\", sum, seen);");
        self.line("return (int)(sum & 63);");
        self.text.push_str("}\n");
    }
}

#[cfg(test)]
mod tests {
    //! The generator against itself.

    use super::*;

    #[test]
    fn a_seed_gives_the_same_program_each_time_and_another_seed_another() {
        assert_eq!(program(7, Language::Cpp), program(7, Language::Cpp));
        assert_ne!(program(7, Language::C), program(8, Language::C));
    }
}
