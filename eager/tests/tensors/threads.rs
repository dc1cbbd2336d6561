//! Eager tensors on ranks that are threads, compared with the same numbers on one rank.

use crate::common::{Failure, numbers, on, sbp, wholes};
use graphc_eager::{Eager, GlobalTensor};
use graphc_ir::mesh::Placement;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;
use graphc_runtime::dist;

/// The layouts of a matrix over one axis.
const LINES: [&str; 4] = ["S(0)", "S(1)", "B", "P"];
const GRIDS: [&str; 5] = ["S(0), S(1)", "S(0), S(0)", "B, S(1)", "P, S(0)", "P, B"];

#[test]
fn tensors_of_different_layouts_add_up() {
    let sums = on(2, |eager| {
        let pair = Placement::mesh(&[2])?;
        let x = eager.randn([4, 5], &pair, &sbp("S(0)"))?;
        let y = eager.randn([4, 5], &pair, &sbp("S(1)"))?;
        let z = (&x + &y)?;
        assert_eq!((z.shape(), z.dtype(), z.placement()), (&[4, 5][..], DType::F32, &pair));
        wholes(&[x, y, z])
    });
    assert_eq!(sums[0], sums[1]);
    let [x, y, z] = [0, 1, 2].map(|i| numbers(&sums[0][i]));
    let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert!(z.iter().zip(expected).all(|(z, expected)| (z - expected).abs() < 1e-6));
    assert_ne!(x, y, "each draws its own numbers");
}

/// Computes sum, difference, quotient and product of matrices in two layouts. The numbers are small integers, so every order of summation gives the
/// same bits.
fn arithmetic(
    eager: &Eager,
    mesh: &Placement,
    left: &str,
    right: &str,
) -> Result<Vec<HostTensor>, Failure> {
    let of = |shape: [usize; 2], text: &str| -> Result<GlobalTensor, Failure> {
        let count = shape[0] * shape[1];
        let data: Vec<f64> = (0..count).map(|i| (i % 7) as f64 - 2.0).collect();
        let whole = HostTensor::from_f64(DType::F32, shape, &data)?;
        Ok(eager.from_host(&whole, mesh, &sbp(text))?)
    };
    let (x, y) = (of([6, 5], left)?, of([6, 5], right)?);
    let w = of([5, 6], right)?;
    let results = [
        (&x + &y)?,
        (&x - &y)?,
        (&x * &y)?,
        (&x / ((&y * &y)? + 1.0)?)?,
        x.matmul(&w)?,
        x.sum(&[0], false)?,
        x.mean(&[0, 1], true)?,
        x.transpose(&[1, 0])?,
        x.reshape(&[3, 10])?,
        x.relu()?,
        (-&x)?,
        x.exp()?,
        (2.0 - &x)?,
        x.cast(DType::I64)?,
    ];
    wholes(&results)
}

#[test]
fn all_layouts_give_the_numbers_of_one_rank() {
    let one = |left: &str, right: &str| {
        let mut all = on(1, |eager| arithmetic(&eager, &Placement::mesh(&[1])?, left, right));
        all.remove(0)
    };
    let expected = one("B", "B");
    let on_mesh = |mesh: &[usize], layouts: &[&str]| {
        let ranks = mesh.iter().product::<usize>() as u32;
        let all = on(ranks, |eager| {
            let mesh = Placement::mesh(mesh)?;
            let mut all = Vec::new();
            for left in layouts {
                for right in layouts {
                    let results = arithmetic(&eager, &mesh, left, right)?;
                    all.push((format!("{left} and {right}"), results));
                }
            }
            Ok(all)
        });
        for (rank, pairs) in all.into_iter().enumerate() {
            for (layouts, results) in pairs {
                assert_eq!(results, expected, "{layouts} on {mesh:?}, rank {rank}");
            }
        }
    };
    on_mesh(&[2], &LINES);
    on_mesh(&[2, 2], &GRIDS);
}

/// A result keeps the layout that the operation gives it without boxing, and partial sums are summed up.
#[test]
fn results_lie_as_costs_least() {
    on(2, |eager| {
        let pair = eager.all();
        let of = |layout: &str| eager.ones([8, 8], &pair, &sbp(layout));
        let (rows, columns, whole) = (of("S(0)")?, of("S(1)")?, of("B")?);
        for (result, layout) in [
            ((&rows + &rows)?, "S(0)"),
            ((&columns * 2.0)?, "S(1)"),
            (rows.matmul(&whole)?, "S(0)"),
            (whole.matmul(&columns)?, "S(1)"),
            (rows.transpose(&[1, 0])?, "S(1)"),
            (rows.sum(&[1], false)?, "S(0)"),
            (rows.sum(&[0, 1], false)?, "B"),
        ] {
            assert_eq!(result.sbp(), &sbp(layout));
        }
        Ok(())
    });
}

#[test]
fn tensors_go_to_other_ranks_and_back() {
    let all = on(4, |eager| {
        let places = [
            (Placement::new(vec![0, 1], vec![2])?, LINES),
            (Placement::new(vec![3, 2], vec![2])?, LINES),
            (Placement::new(vec![1, 2, 3], vec![3])?, LINES),
            (Placement::new(vec![2], vec![1])?, LINES),
        ];
        let begin = eager.arange(20, &places[0].0, &sbp("S(0)"))?.reshape(&[4, 5])?;
        let expected = begin.to_host()?;
        let mut at = begin.clone();
        for round in 0..2 {
            for (placement, layouts) in &places {
                for layout in layouts {
                    at = at.to_global(placement, &sbp(layout))?;
                    let holds = placement.ranks.contains(&eager.rank());
                    assert_eq!(at.to_local().is_some(), holds);
                    assert_eq!((at.placement(), at.sbp()), (placement, &sbp(layout)));
                    assert_eq!(at.to_host()?, expected, "round {round}, {layout} on {placement}");
                }
            }
        }
        Ok(expected.to_f64())
    });
    assert_eq!(all, vec![(0..20).map(f64::from).collect::<Vec<f64>>(); 4]);
}

/// A matrix in any layout over two axes becomes any other, on the same mesh and on one that has other ranks and axes.
#[test]
fn every_layout_becomes_every_other() {
    let axis = ["B", "S(0)", "S(1)", "P"];
    let pairs: Vec<_> =
        axis.iter().flat_map(|a| axis.iter().map(move |b| sbp(&format!("{a}, {b}")))).collect();
    let all = on(4, |eager| {
        let (grid, line) = (Placement::mesh(&[2, 2])?, Placement::new(vec![3, 1, 0], vec![3])?);
        let begin = eager.randn([5, 3], &line, &sbp("S(0)"))?;
        let expected = begin.to_host()?;
        for from in &pairs {
            let there = begin.to_global(&grid, from)?;
            for to in &pairs {
                let back = there.to_global(&grid, to)?.to_global(&line, &sbp("S(1)"))?;
                assert_eq!(back.to_host()?, expected, "{from} to {to}");
            }
        }
        Ok(expected)
    });
    assert!(all.iter().all(|whole| *whole == all[0]));
}

#[test]
fn integers_and_halves_are_computed_too() {
    let all = on(2, |eager| {
        let mut all = Vec::new();
        for dtype in [DType::I64, DType::I32, DType::BF16, DType::F16] {
            let x = eager.of(dtype).arange(6, &eager.all(), &sbp("S(0)"))?.reshape(&[2, 3])?;
            let y = ((&x + &x)? - (&x * 2.0)?)?;
            assert_eq!((y.dtype(), y.to_host()?.to_f64()), (dtype, vec![0.0; 6]));
            all.push(x.transpose(&[1, 0])?.sum(&[0], false)?);
        }
        wholes(&all)
    });
    assert!(all[0].iter().all(|sums| sums.to_f64() == [3.0, 12.0]));
}

#[test]
fn a_group_of_some_ranks_has_tensors_of_its_own() {
    let run = |group: dist::Group| -> Result<Option<Vec<f32>>, Failure> {
        let Some(some) = group.new_group(&[3, 1, 0])? else { return Ok(None) };
        let eager = Eager::new(&some)?;
        let x = eager.arange(6, &eager.all(), &sbp("S(0)"))?;
        let y = (&x + &x.to_global(&eager.all(), &sbp("B"))?)?;
        let back = y.to_global(&Placement::new(vec![2], vec![1])?, &sbp("B"))?;
        assert_eq!(back.to_local().is_some(), group.rank() == 0);
        Ok(Some(y.to_host()?.to_f32()?))
    };
    let all = dist::spawn(4, run).expect("every rank succeeds");
    let expected = Some(vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    assert_eq!(all, [expected.clone(), expected.clone(), None, expected]);
}

#[test]
fn tensors_without_elements_and_without_dims_are_no_fault() {
    let all = on(2, |eager| {
        let empty = eager.zeros([0, 4], &eager.all(), &sbp("S(1)"))?;
        let scalar = eager.full([], 2.0, &eager.all(), &sbp("P"))?;
        let product = empty.transpose(&[1, 0])?.matmul(&empty)?;
        wholes(&[product, (&scalar * &scalar)?, empty.sum(&[0], false)?])
    });
    assert_eq!(all[0][0].to_f64(), [0.0; 16]);
    assert_eq!((all[0][1].to_f64(), all[0][2].to_f64()), (vec![4.0], vec![0.0; 4]));
}

#[test]
fn random_numbers_are_those_of_every_mesh() {
    let draw = |mesh: &'static [usize], layout: &'static str| {
        let ranks = mesh.iter().product::<usize>() as u32;
        let all = on(ranks, |eager| {
            let mesh = Placement::mesh(mesh)?;
            eager.seed(7);
            let x = eager.randn([5, 3], &mesh, &sbp(layout))?;
            let y = eager.rand([4], &mesh, &sbp(&layout.replace('1', "0")))?;
            wholes(&[x, y])
        });
        all.into_iter().next().expect("a rank")
    };
    let expected = draw(&[1], "B");
    for (mesh, layout) in [
        (&[2][..], "S(0)"),
        (&[3], "S(1)"),
        (&[2], "P"),
        (&[2, 2], "S(1), S(0)"),
        (&[2, 2], "P, B"),
    ] {
        assert_eq!(draw(mesh, layout), expected, "{layout} on {mesh:?}");
    }
}

#[test]
fn local_tensors_become_global_ones() {
    let shapes = on(2, |eager| {
        let pair = Placement::mesh(&[2])?;
        let row = eager.rank() as f32;
        let local = HostTensor::from_f32([2, 5], &[row; 10])?;
        let rows = eager.from_local(&local, &pair, &sbp("S(0)"))?;
        let sums = eager.from_local(&local, &pair, &sbp("P"))?;
        assert_eq!((rows.shape(), sums.shape()), (&[4, 5][..], &[2, 5][..]));
        assert_eq!(rows.to_local(), Some(&local));
        assert_eq!(sums.to_host()?.to_f32()?, [1.0; 10]);
        // Three rows split unevenly: the first rank has one more.
        let rows = if eager.rank() == 0 { 2 } else { 1 };
        let uneven =
            eager.from_local(&HostTensor::zeros(DType::I64, [rows]), &pair, &sbp("S(0)"))?;
        Ok(uneven.shape().to_vec())
    });
    assert_eq!(shapes, [[3], [3]]);
}

#[test]
fn tensors_are_printed_as_numbers() {
    let shown = on(2, |eager| {
        let x = eager.arange(4, &Placement::mesh(&[2])?, &sbp("S(0)"))?;
        let elsewhere = x.to_global(&Placement::new(vec![0], vec![1])?, &sbp("B"))?;
        Ok([format!("{x}"), format!("{:?}", (&x * 0.5)?), format!("{elsewhere:?}")])
    });
    assert_eq!(shown[1][0], "f32[4] S(0) on cpu [0, 1] as 2, rank 1 has [2..4]:\n[2, 3]");
    assert_eq!(shown[1][1], "f32[4] S(0) on cpu [0, 1] as 2, rank 1 has [2..4]: [1, 1.5]");
    assert_eq!(shown[1][2], "f32[4] B on cpu [0] as 1, rank 1 has nothing");
    assert!(shown[0][2].ends_with("rank 0 has [0..4]: [0, 1, 2, 3]"), "{}", shown[0][2]);
}

/// Any layout of ranks in a line or in a grid, even an uneven one, becomes any other, including those that leave each rank what it has.
#[test]
fn ranks_of_a_line_are_those_of_a_grid() {
    let line = Placement::mesh(&[4]).expect("four ranks");
    let grid = Placement::mesh(&[2, 2]).expect("four ranks");
    let of_line = ["S(0)", "S(1)", "B", "P"].map(|text| (&line, sbp(text)));
    let axes = ["S(0)", "S(1)", "B", "P"];
    let of_grid = axes.iter().flat_map(|a| axes.iter().map(move |b| sbp(&format!("{a}, {b}"))));
    let all: Vec<_> = of_line.into_iter().chain(of_grid.map(|sbp| (&grid, sbp))).collect();
    let found = on(4, |eager| {
        let pairs = || all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
        let moves = [[5, 3], [8, 4]].into_iter().flat_map(|shape| pairs().map(move |m| (shape, m)));
        for (shape, (from, to)) in moves {
            let data: Vec<f64> = (0..shape[0] * shape[1]).map(|i| i as f64).collect();
            let whole = HostTensor::from_f64(DType::F32, shape, &data)?;
            let there = eager.from_host(&whole, from.0, &from.1)?.to_global(to.0, &to.1)?;
            assert_eq!((there.placement(), there.sbp()), (to.0, &to.1));
            assert_eq!(there.to_host()?, whole, "{shape:?} {} to {}", from.1, to.1);
            // Operations know it as well as the caller does.
            assert_eq!((&there + 1.0)?.to_host()?.to_f64()[0], 1.0);
        }
        Ok(())
    });
    assert_eq!(found.len(), 4);
}
