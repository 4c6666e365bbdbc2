//! The rules of reordering, each by a block that would break without it, and what the model of processors knows.

use iced_x86::code_asm::*;
use iced_x86::{Instruction, InstructionInfoFactory};
use lifter::address::Va;

use super::effects::{Effects, effects_of};
use super::graph::{Graph, Progress};
use super::memory::{BlockMemory, Pair};
use super::model::{PROCESSORS, Step, estimate};

fn assembled(write: impl Fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Vec<Instruction> {
    let mut assembler = CodeAssembler::new(64).expect("there is 64-bit code");
    write(&mut assembler).expect("it can be written");
    assembler.instructions().to_vec()
}

fn effects(instructions: &[Instruction]) -> Vec<Option<Effects>> {
    let mut factory = InstructionInfoFactory::new();
    instructions.iter().map(|instruction| effects_of(&mut factory, instruction)).collect()
}

/// All orders that a graph allows.
fn all_orders(graph: &Graph, count: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(order) = open.pop() {
        let mut progress = Progress::new(graph);
        order.iter().for_each(|&at| progress.place(at));
        if order.len() == count {
            all.push(order);
            continue;
        }
        open.extend(progress.ready().map(|next| [order.as_slice(), &[next]].concat()));
    }
    all
}

#[test]
fn what_does_more_than_compute_stays_where_it_is() {
    let fixed = assembled(|a| {
        a.push(rax)?;
        a.sub(rsp, 8)?;
        a.mfence()?;
        a.lock().add(dword_ptr(rax), 1)?;
        a.xchg(dword_ptr(rax), ecx)?;
        a.rep().movsb()?;
        a.fld1()?;
        a.ldmxcsr(dword_ptr(rax))?;
        a.cpuid()?;
        a.syscall()?;
        a.nop()?;
        a.endbr64()?;
        a.vzeroupper()?;
        a.movntdq(xmmword_ptr(rax), xmm0)?;
        a.cld()?;
        a.bt(dword_ptr(rax), ecx)?;
        a.paddb(mm0, mm1)?;
        a.leave()?;
        a.call(rax)
    });
    let moved: Vec<String> =
        fixed.iter().zip(effects(&fixed)).filter(|(_, e)| e.is_some()).map(|(i, _)| format!("{i:?}")).collect();
    assert!(moved.is_empty(), "{moved:?}");
    let free = assembled(|a| {
        a.mov(rax, qword_ptr(rcx + rdx * 4))?;
        a.mov(qword_ptr(rsp + 8), rax)?;
        a.movzx(eax, byte_ptr(rbx))?;
        a.addsd(xmm0, qword_ptr(rcx))?;
        a.xchg(rax, rcx)?;
        a.lea(rax, qword_ptr(rsp + 8))?;
        a.cmove(rax, rcx)?;
        a.idiv(ecx)
    });
    assert!(effects(&free).iter().all(Option::is_some));
}

#[test]
fn in_each_legal_order_flags_and_registers_are_read_from_whom_they_were() {
    let run = assembled(|a| {
        a.add(r8, 1)?;
        a.cmp(rcx, rdx)?;
        a.lea(r9, qword_ptr(r9 + 1))?;
        a.cmovb(rbx, rsi)?;
        a.inc(r10)?;
        a.adc(r11, 0)?;
        a.shl(r8, 3)?;
        a.test(rbx, rbx)
    });
    let run: Vec<Effects> = effects(&run).into_iter().flatten().collect();
    assert_eq!(run.len(), 8);
    let graph = Graph::new(&run, |_, _| false);
    // By order: from whom each instruction has what it reads, and who wrote last.
    let sources = |order: &[usize]| {
        let mut last = [usize::MAX; 64];
        let mut read = vec![Vec::new(); run.len()];
        for &at in order {
            let effects = &run[at];
            let places = |registers: u64, flags: u32| registers | u64::from(flags) << 48;
            let (reads, writes) =
                (places(effects.reads | effects.address, effects.flags_read), places(effects.writes, effects.flags_written));
            read[at] = (0..64).filter(|place| reads >> place & 1 != 0).map(|place| last[place]).collect();
            (0..64).filter(|place| writes >> place & 1 != 0).for_each(|place| last[place] = at);
        }
        (read, last)
    };
    let original: Vec<usize> = (0..run.len()).collect();
    let all = all_orders(&graph, run.len());
    assert!(all.len() > 10 && all.contains(&original), "{}", all.len());
    for order in all {
        assert_eq!(sources(&order), sources(&original), "{order:?}");
    }
}

#[test]
fn shared_memory_keeps_the_order_that_the_processor_keeps() {
    let load = Effects { loads: true, ..Effects::default() };
    let store = Effects { stores: true, ..Effects::default() };
    let change = Effects { loads: true, stores: true, ..Effects::default() };
    let divide = Effects { may_trap: true, is_division: true, ..Effects::default() };
    let float = Effects { may_trap: true, ..Effects::default() };
    let (first, second) = (Va(0x10), Va(0x20));
    let pair = |is_apart, is_private| BlockMemory::of_pair((first, second), Pair { is_apart, is_private });
    let stays = |memory: &BlockMemory, a: Effects, b: Effects, no_races| memory.stays((first, &a), (second, &b), no_races);
    let shared = pair(true, false);
    // A load may come before a store; nothing else may pass.
    assert!(!stays(&shared, store, load, false));
    for (a, b) in [(load, load), (load, store), (store, store), (change, load), (store, change), (load, change)] {
        assert!(stays(&shared, a, b, false));
        assert!(!stays(&shared, a, b, true), "without races it may");
        assert!(!stays(&pair(true, true), a, b, false), "and where nobody else can look");
    }
    let near = pair(false, false);
    assert!(stays(&near, store, load, false) && stays(&near, store, load, true) && stays(&near, store, store, true));
    assert!(!stays(&near, load, load, true));
    let own = pair(false, true);
    assert!(stays(&own, store, load, false) && stays(&own, store, load, true) && !stays(&own, load, load, false));
    // What a trap finds made is what it found.
    for (a, b) in [(divide, store), (store, divide), (divide, load), (divide, divide), (float, store), (store, float)] {
        assert!(stays(&pair(true, true), a, b, true));
    }
    assert!(!stays(&shared, float, load, false) && !stays(&shared, float, float, false));
}

#[test]
fn the_model_knows_ports_widths_and_latencies() {
    let steps = |write: &dyn Fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>| -> Vec<Step> {
        let instructions = assembled(write);
        instructions.iter().zip(effects(&instructions)).map(|(i, e)| Step::new(i, &e.expect("it may move"))).collect()
    };
    let cycles = |steps: &[Step]| {
        let order: Vec<u32> = (0..steps.len() as u32).collect();
        PROCESSORS.map(|processor| estimate(processor, steps, &order))
    };
    let chain = steps(&|a| (0..8).try_for_each(|_| a.imul_2(rax, rcx)));
    assert_eq!(cycles(&chain).map(|e| e.again), [16 * 8 * 3; 2], "three cycles for each multiplication that waits for the last");
    let wide = steps(&|a| {
        for register in [rax, rcx, rdx, rbx, rsi, rdi, r8, r9, r10, r11, r12, r13] {
            a.imul_3(register, r14, 5)?;
        }
        Ok(())
    });
    assert_eq!(cycles(&wide).map(|e| e.again), [16 * 12; 2], "one port multiplies");
    let simple = steps(&|a| {
        for register in [eax, ecx, edx, ebx, esi, edi, r8d, r9d, r10d, r11d, r12d, r13d] {
            a.mov(register, 5)?;
        }
        Ok(())
    });
    assert_eq!(cycles(&simple)[0].again, 16 * 12 / 4, "four at a time");
}
