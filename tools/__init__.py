"""What only this repository needs: records, results, benchmarks, pictures; not part of the package."""
