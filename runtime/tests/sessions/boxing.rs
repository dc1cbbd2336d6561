//! Every pair of layouts: a global tensor that changes its layout stays the same tensor.

use graphc_ir::mesh::Placement;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_runtime::{HostTensor, ShardedTensor};

const CHOICES: [Sbp; 4] = [Sbp::Split(0), Sbp::Split(1), Sbp::Broadcast, Sbp::PARTIAL];

fn sbps(axes: usize) -> Vec<NdSbp> {
    let mut all = vec![Vec::new()];
    for _ in 0..axes {
        let extend = |prefix: &Vec<Sbp>| CHOICES.map(|sbp| [prefix.as_slice(), &[sbp]].concat());
        all = all.iter().flat_map(extend).collect();
    }
    all.into_iter().map(NdSbp).collect()
}

fn meshes() -> Vec<Placement> {
    let mesh = |ranks: &[u32], hierarchy: &[usize]| {
        Placement::new(ranks.to_vec(), hierarchy.to_vec()).expect("distinct ranks")
    };
    vec![
        mesh(&[0, 1, 2, 3], &[4]),
        mesh(&[0, 1, 2, 3], &[2, 2]),
        mesh(&[4, 5, 6], &[3]),
        mesh(&[3, 1, 5], &[3]),
        mesh(&[2, 7, 0, 6], &[2, 2]),
    ]
}

fn numbers(dtype: DType, shape: &[usize]) -> HostTensor {
    let elements = shape.iter().product::<usize>();
    let data: Vec<f64> = (0..elements).map(|i| (i % 113) as f64 - 31.0).collect();
    HostTensor::from_f64(dtype, shape, &data).expect("as many as the shape has")
}

/// Shards that are not those that this crate would make: partial values are spread over all ranks.
fn spread(tensor: &HostTensor, mesh: &Placement, sbp: &NdSbp) -> ShardedTensor {
    let global = ShardedTensor::from_host(tensor, mesh, sbp).expect("it fits");
    if !sbp.is_partial() {
        return global;
    }
    let shards = mesh.ranks.iter().enumerate().map(|(position, &rank)| {
        let mut data = global.local(rank).expect("a rank of the mesh").to_f64();
        let coordinates = mesh.coordinates(position);
        let partial = |axis: &usize| sbp.0[*axis].is_partial();
        // Along each partial axis the noise adds up to zero.
        for axis in (0..coordinates.len()).filter(partial) {
            let last = coordinates[axis] + 1 == mesh.hierarchy[axis];
            let noise = if last { 1.0 - mesh.hierarchy[axis] as f64 } else { 1.0 };
            data.iter_mut().for_each(|x| *x += 5.0 * noise);
        }
        let shape = global.local(rank).expect("a rank of the mesh").shape();
        HostTensor::from_f64(tensor.dtype(), shape, &data).expect("the same shape")
    });
    ShardedTensor::from_local(shards.collect(), tensor.shape(), mesh, sbp).expect("it fits")
}

fn all_pairs(dtype: DType, shape: &[usize]) {
    let tensor = numbers(dtype, shape);
    for from in meshes() {
        for before in sbps(from.hierarchy.len()) {
            let global = spread(&tensor, &from, &before);
            assert_eq!(global.to_host().expect("one kind"), tensor, "{from} {before}");
            for to in meshes() {
                for after in sbps(to.hierarchy.len()) {
                    let moved = global.to_global(&to, &after).expect("every pair works");
                    let place = || format!("{from} ({before}) to {to} ({after})");
                    assert_eq!(moved.to_host().expect("one kind"), tensor, "{}", place());
                    for &rank in &to.ranks {
                        let local = moved.local(rank).expect("a rank of the mesh");
                        let rect = moved.layout().rect(rank, 0, 1).expect("a rank of the mesh");
                        assert_eq!(local.shape(), rect.extent, "{}", place());
                    }
                }
            }
        }
    }
}

#[test]
fn all_pairs_of_a_small_uneven_tensor() {
    all_pairs(DType::F32, &[5, 7]);
}

#[test]
fn all_pairs_of_a_larger_uneven_tensor() {
    all_pairs(DType::F32, &[25, 33]);
}

#[test]
fn all_pairs_of_an_empty_tensor() {
    all_pairs(DType::F32, &[8, 0, 4]);
}

#[test]
fn all_pairs_of_integers() {
    all_pairs(DType::I64, &[5, 7]);
}

#[test]
fn every_replica_holds_the_same() {
    let tensor = numbers(DType::F32, &[5, 7]);
    let mesh = &meshes()[1];
    let partial = spread(&tensor, mesh, &"P,S(1)".parse().expect("an SBP"));
    let whole = partial.to_global(mesh, &"B,B".parse().expect("an SBP")).expect("fits");
    assert!(mesh.ranks.iter().all(|&rank| whole.local(rank) == Some(&tensor)));
}

#[test]
fn what_does_not_fit_is_said() {
    let mesh = &meshes()[0];
    let tensor = numbers(DType::F32, &[5, 7]);
    let say = |sbp: &str| {
        let sbp = sbp.parse().expect("an SBP");
        ShardedTensor::from_host(&tensor, mesh, &sbp).expect_err("it does not fit").to_string()
    };
    assert!(say("S(2)").contains("f32[5, 7] cannot be S(2): it has 2 dims"), "{}", say("S(2)"));
    assert!(say("B,B").contains("names 2 axes"), "{}", say("B,B"));
    let shards = vec![tensor.clone(); 4];
    let sbp = "S(0)".parse().expect("an SBP");
    let error = ShardedTensor::from_local(shards, [5, 7], mesh, &sbp).expect_err("whole shards");
    assert!(error.to_string().contains("rank 0 holds f32[2, 7], not f32[5, 7]"), "{error}");
}
