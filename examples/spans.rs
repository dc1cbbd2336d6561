//! Prints what graphc does, as spans of the crate `tracing`: each is printed when it ends, with the span that it was part of and its time.
//!
//!     cargo run --release --example spans

use graphc::prelude::*;
use tracing_subscriber::fmt::format::FmtSpan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).with_ansi(false).init();

    let g = GraphBuilder::new("spans");
    let x = g.input("x", DType::F32, [8, 16]);
    let logits = nn::Linear::new(&g, "layer", 16, 4).forward(&x);
    g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [8])));
    let optimizer = Some(Optimizer::sgd(0.1));
    let options = CompileOptions { mesh: vec![2], optimizer, ..CompileOptions::default() };
    let cluster = preset("cpu").ok_or("no such cluster")?;
    let plan = compile(g.finish()?, &options, &cluster, None)?.plan;

    let mut session = Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?;
    for _ in 0..3 {
        let feeds = BTreeMap::from([
            ("x".to_owned(), HostTensor::from_f32([8, 16], &[0.5; 128])?),
            ("labels".to_owned(), HostTensor::from_i64([8], &[3; 8])?),
        ]);
        session.step(feeds)?.wait()?;
    }
    Ok(())
}
