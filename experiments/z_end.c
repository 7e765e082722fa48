#include <stddef.h>
extern int rt_begin(int);
__attribute__((noinline)) int rt_end(int x){ return x+2; }
size_t rt_prefetch(void){ const char *a=(const char*)(void*)rt_begin,*b=(const char*)(void*)rt_end;
 volatile char c; for(const char*p=a;p<b;p+=16<<12) c=*p; c=*(b-1); (void)c;
 for(const char*p=a;p<b;p+=64) __builtin_prefetch(p,0,2); return b-a; }
