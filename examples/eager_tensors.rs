//! Global tensors driven by hand: every rank runs this program, and each call is done when it returns. Alone it runs on two threads
//! and on four, under the launcher on as many processes; the numbers are the same.
//!
//!     cargo run --release --example eager_tensors
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/eager_tensors

use graphc::dist;
use graphc::prelude::*;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let first = dist::run(2, program)?;
    // Under the launcher this process is one rank.
    let alone = first.len() > 1;
    let second = if alone { dist::spawn(4, program)? } else { Vec::new() };
    first.iter().chain(&second).for_each(|lines| print!("{lines}"));
    Ok(())
}

fn program(group: Group) -> Result<String, Failure> {
    let eager = Eager::new(&group)?;
    let (rank, ranks) = (eager.rank(), eager.world_size());
    let mut lines = String::new();
    let mut say = |text: String| lines += &format!("{ranks} ranks, rank {rank}: {text}\n");
    let pair = Placement::new(vec![0, 1], vec![2])?;
    let (rows, columns, whole): (NdSbp, NdSbp, NdSbp) =
        ("S(0)".parse()?, "S(1)".parse()?, "B".parse()?);
    let holds = |placement: &Placement| placement.ranks.contains(&rank);

    // A tensor on ranks 0 and 1, of which each holds two rows.
    let x = eager.randn([4, 5], &pair, &rows)?;
    assert_eq!((x.shape(), x.sbp(), x.placement()), (&[4, 5][..], &rows, &pair));
    say(format!("{x:?}"));

    // Two local tensors of [2, 5] are a global one of [4, 5].
    let local = HostTensor::from_f32([2, 5], &[rank as f32; 10])?;
    let joined = eager.from_local(&local, &pair, &rows)?;
    assert_eq!(joined.shape(), [4, 5]);
    assert_eq!(joined.to_host()?.to_f32()?[8..12], [0.0, 0.0, 1.0, 1.0]);

    // To other ranks and another layout: from S(0) on 0 and 1 to B on 2 and 3, where there are so many.
    let elsewhere = match ranks {
        4.. => Placement::new(vec![2, 3], vec![2])?,
        _ => Placement::new(vec![1], vec![1])?,
    };
    let pieces = eager.from_host(&HostTensor::from_f32([2], &[1.0, 2.0])?, &pair, &rows)?;
    let moved = pieces.to_global(&elsewhere, &whole)?;
    assert_eq!((moved.shape(), moved.placement()), (&[2][..], &elsewhere));
    assert_eq!(moved.to_local().is_some(), holds(&elsewhere));
    if let Some(local) = moved.to_local() {
        assert_eq!(local.to_f32()?, [1.0, 2.0]);
    }
    say(format!("{moved:?}"));

    // Operands that lie differently are brought together as is cheapest.
    let x = eager.randn([4, 4], &pair, &rows)?;
    let y = eager.randn([4, 4], &pair, &columns)?;
    let z = (&x + &y)?;
    assert_eq!(z.shape(), [4, 4]);
    let [a, b, c] = [x.to_host()?.to_f32()?, y.to_host()?.to_f32()?, z.to_host()?.to_f32()?];
    assert!(a.iter().zip(&b).zip(&c).all(|((a, b), c)| a + b == *c));
    say(format!("{z:?}"));

    // What this rank holds.
    let local = joined.to_local();
    assert_eq!(local.map(HostTensor::shape), holds(&pair).then_some(&[2, 5][..]));

    // On all ranks in a grid, if there are four: products in any layouts, and what is made of them.
    let mesh = if ranks >= 4 { Placement::mesh(&[2, 2])? } else { pair };
    let of = |text: &str| -> Result<NdSbp, String> {
        vec![text; mesh.hierarchy.len()].join(", ").parse()
    };
    let w = eager.randn([4, 6], &mesh, &of("P")?)?;
    let x = x.to_global(&mesh, &of("S(1)")?)?;
    let h = x.matmul(&w)?.relu()?;
    let softmax = (h.exp()? / h.exp()?.sum(&[1], true)?)?;
    let sums = softmax.sum(&[1], false)?.to_host()?.to_f32()?;
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-6), "{sums:?}");
    let mean = ((2.0 * softmax)? - 1.0)?.mean(&[0, 1], false)?;
    say(format!("mean {}", mean.to_host()?));
    Ok(lines)
}
