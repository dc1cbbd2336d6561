/* Collectives of MPI between processes: one JSON line per op and size, from rank 0.
 *
 *   mpicc -O2 mpi_collectives.c -o mpi_collectives
 *   mpirun -n 2 ./mpi_collectives "4096,1048576,67108864" "all_reduce,broadcast" 0.5
 *
 * The same calls, sizes and rounds as ../collectives.rs. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *OPS[] = {"all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
                            "scatter",    "reduce_scatter", "all_to_all", "send_recv",  "barrier"};

static void call(const char *op, float *small, float *large, int count, int rank, int n) {
    int part = count / n, last = n - 1;
    if (!strcmp(op, "all_reduce")) MPI_Allreduce(MPI_IN_PLACE, small, count, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    if (!strcmp(op, "broadcast")) MPI_Bcast(small, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (!strcmp(op, "reduce"))
        MPI_Reduce(rank ? small : MPI_IN_PLACE, small, count, MPI_FLOAT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!strcmp(op, "all_gather")) MPI_Allgather(small, count, MPI_FLOAT, large, count, MPI_FLOAT, MPI_COMM_WORLD);
    if (!strcmp(op, "gather")) MPI_Gather(small, count, MPI_FLOAT, large, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (!strcmp(op, "scatter")) MPI_Scatter(large, count, MPI_FLOAT, small, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (!strcmp(op, "reduce_scatter"))
        MPI_Reduce_scatter_block(small, large, part, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    if (!strcmp(op, "all_to_all")) MPI_Alltoall(small, part, MPI_FLOAT, large, part, MPI_FLOAT, MPI_COMM_WORLD);
    if (!strcmp(op, "barrier")) MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(op, "send_recv")) {
        if (rank == 0) {
            MPI_Send(small, count, MPI_FLOAT, last, 0, MPI_COMM_WORLD);
            MPI_Recv(large, count, MPI_FLOAT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == last) {
            MPI_Recv(large, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(small, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        }
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *op, long bytes, double seconds, int rank, int n) {
    int count = (int)(bytes / 4 / n * n);
    if (count < n) count = n;
    float *small = malloc(sizeof(float) * count), *large = malloc(sizeof(float) * count * n);
    for (long i = 0; i < count; i++) small[i] = 1;
    for (long i = 0; i < (long)count * n; i++) large[i] = 1;
    for (int i = 0; i < 3; i++) call(op, small, large, count, rank, n);
    double begun = MPI_Wtime();
    for (int i = 0; i < 3; i++) call(op, small, large, count, rank, n);
    long calls = (long)(seconds / 5 / ((MPI_Wtime() - begun) / 3));
    calls = calls < 1 ? 1 : calls > 10000 ? 10000 : calls;
    MPI_Bcast(&calls, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    double rounds[5];
    for (int round = 0; round < 5; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        begun = MPI_Wtime();
        for (long i = 0; i < calls; i++) call(op, small, large, count, rank, n);
        rounds[round] = (MPI_Wtime() - begun) / calls;
    }
    qsort(rounds, 5, sizeof(double), compare);
    if (!strcmp(op, "send_recv")) rounds[2] /= 2; /* there and back are two */
    if (rank == 0) {
        printf("{\"framework\": \"mpi\", \"op\": \"%s\", \"bytes\": %ld, \"procs\": %d, \"seconds\": %.9f}\n", op, bytes, n,
               rounds[2]);
        fflush(stdout);
    }
    free(small);
    free(large);
}

/* Whether a name is one of a list with commas: reduce is a part of all_reduce. */
static int listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length])) return 1;
    return 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    const char *sizes = argc > 1 ? argv[1] : "4096,1048576,67108864";
    const char *ops = argc > 2 ? argv[2] : "";
    double seconds = argc > 3 ? atof(argv[3]) : 0.5;
    for (int i = 0; i < (int)(sizeof OPS / sizeof *OPS); i++) {
        if (*ops && !listed(ops, OPS[i])) continue;
        if (!strcmp(OPS[i], "barrier")) {
            measure(OPS[i], 0, seconds, rank, n);
            continue;
        }
        char *list = strdup(sizes);
        for (char *size = strtok(list, ","); size; size = strtok(NULL, ",")) measure(OPS[i], atol(size), seconds, rank, n);
        free(list);
    }
    MPI_Finalize();
    return 0;
}
