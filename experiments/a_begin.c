__attribute__((noinline)) int rt_begin(int x){ return x+1; }
