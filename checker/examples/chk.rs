fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (x, y) = (std::fs::read(&a[1]).unwrap(), std::fs::read(&a[2]).unwrap());
    let report = checker::check(&x, &y).unwrap();
    for v in report.violations.iter().take(60) { println!("{v}"); }
    println!("{} violations {:?}", report.violations.len(), report.stats);
}
