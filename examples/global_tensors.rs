//! Global tensors at the session's edge, whose shards one process holds: local shards become a global tensor, which is laid
//! out anew on the same and on another placement and given back as local shards. Tensors whose ranks each hold their own are
//! those of `eager_tensors`.
//!
//!     cargo run --release --example global_tensors

use graphc::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pair = Placement::new(vec![0, 1], vec![2])?;
    let square = Placement::mesh(&[2, 2])?;

    let top = HostTensor::from_f32([2, 4], &[0., 1., 2., 3., 4., 5., 6., 7.])?;
    let bottom = HostTensor::from_f32([2, 4], &[8., 9., 10., 11., 12., 13., 14., 15.])?;
    let rows = ShardedTensor::from_local(vec![top, bottom], [4, 4], &pair, &"S(0)".parse()?)?;
    println!("two shards of [2, 4] by S(0) are a global tensor of {:?}", rows.layout().shape);

    let columns = rows.to_global(&pair, &"S(1)".parse()?)?;
    show("S(1) on ranks 0 and 1", &columns)?;
    let blocks = columns.to_global(&square, &"S(0), S(1)".parse()?)?;
    show("S(0), S(1) on 2x2", &blocks)?;
    let whole = blocks.to_global(&pair, &"B".parse()?)?;
    show("B on ranks 0 and 1", &whole)?;

    let expected: Vec<f32> = (0..16).map(|i| i as f32).collect();
    assert_eq!(whole.local(1).ok_or("rank 1")?.to_f32()?, expected);
    assert_eq!(blocks.local(3).ok_or("rank 3")?.to_f32()?, [10., 11., 14., 15.]);
    Ok(())
}

fn show(title: &str, tensor: &ShardedTensor) -> Result<(), Box<dyn std::error::Error>> {
    println!("{title}");
    for &rank in &tensor.layout().ranks {
        let local = tensor.local(rank).ok_or("a shard")?;
        println!("  rank {rank}: {:?} {:?}", local.shape(), local.to_f32()?);
    }
    Ok(())
}
